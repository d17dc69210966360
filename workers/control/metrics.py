"""What the newest update measured, for Prometheus: read from the run's records whenever somebody looks.

Nothing is counted here, so a restart loses nothing and no number can differ from the records.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Engine, func, select

from infra.records.schema import batches, updates

_log = logging.getLogger(__name__)

LABELS = {"staleness_tokens": "versions", "staleness_executions": "versions", "micro_steps_by_cell": "cell"}
"""What the bins of a histogram among the figures are called."""


class UpdateCollector(Collector):
    """`gyre_updates`, `gyre_version`, and `gyre_update_<figure>` for every figure of the newest update."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[GaugeMetricFamily]:
        made = batches.c.version_after > batches.c.version_before
        newest = select(batches.c.metrics).where(made).order_by(batches.c.version_after.desc()).limit(1)
        with self._engine.connect() as connection:
            count = connection.execute(select(func.count()).select_from(batches).where(made)).scalar_one()
            version = connection.execute(select(func.max(updates.c.version))).scalar_one()
            figures = connection.execute(newest).scalar_one_or_none() or {}
        yield GaugeMetricFamily("gyre_updates", "Optimizer updates committed", value=count)
        if version is not None:
            yield GaugeMetricFamily("gyre_version", "Newest committed weight version", value=version)
        for name, value in figures.items():
            text = f"{name.replace('_', ' ')} of the newest update"
            if isinstance(value, dict):
                family = GaugeMetricFamily(f"gyre_update_{name}", text, labels=[LABELS.get(name, "bin")])
                for bin, number in value.items():
                    family.add_metric([str(bin)], number)
                yield family
            else:
                yield GaugeMetricFamily(f"gyre_update_{name}", text, value=value)


@contextmanager
def serving(engine: Engine, host: str, port: int) -> Iterator[None]:
    """Answer `/metrics` there meanwhile; a port that is taken is said and costs nothing else. Port 0: not at all."""
    if not port:
        yield
        return
    registry = CollectorRegistry()
    registry.register(UpdateCollector(engine))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        _log.warning("no metrics on port %d: %s", port, error)
        yield
        return
    try:
        yield
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
