"""What the supervisor did, as events: one JSON line each in ``supervisor.jsonl``, and to whoever listens."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StackEvent:
    """`event` is started, ready, died, restarting, stopping, killed or stopped, of code changed; `at` in seconds since
    the epoch."""

    component: str
    event: str
    detail: str = ""
    pid: int | None = None
    at: float = field(default_factory=time.time)


class Journal:
    """Appends events to a file and tells one listener."""

    def __init__(self, path: Path, listener: Callable[[StackEvent], None] | None = None) -> None:
        self._path = path
        self._listener = listener

    def write(self, event: StackEvent) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")
        if self._listener is not None:
            self._listener(event)
