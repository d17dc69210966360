"""What the proxy counts, in a registry of its own (`/metrics` on the admin port)."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("gyre_proxy_calls", "Calls by how they ended", ["state"], registry=self.registry)
        self.refused = Counter("gyre_proxy_refused", "Requests refused at the door", ["status"], registry=self.registry)
        self.segments = Counter("gyre_proxy_segments", "Segments by how they ended", ["ended"], registry=self.registry)
        self.reroutes = Counter("gyre_proxy_reroutes", "Requests continued on another engine", registry=self.registry)
        self.tokens = Counter("gyre_proxy_tokens", "Tokens", ["kind"], registry=self.registry)
        self.forks = Counter("gyre_proxy_forks", "Prompts that fork, by why", ["reason"], registry=self.registry)
        self.waiting = Gauge("gyre_proxy_waiting", "Requests held back", registry=self.registry)
        self.added = self._seconds("gyre_proxy_added_seconds", "From arrival to an engine, waiting for room left out")
        self.waited = self._seconds("gyre_proxy_wait_seconds", "Waiting for room on an engine")
        self.committed = self._seconds("gyre_proxy_commit_seconds", "From an answer's last token to its durable record")

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self.registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)
