"""Memory of a whole stack: the sum of proportional set sizes, in which a shared page counts once."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from infra.processes.identity import ProcessIdentity

SAMPLE_SECONDS = 2.0


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process; 0 when it ended or may not be read."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class PeakMemory:
    """Samples `tree()` every two seconds until cancelled; `peak_bytes` is the largest sum so far."""

    def __init__(self, tree: Callable[[], Iterable[ProcessIdentity]]) -> None:
        self._tree = tree
        self.peak_bytes = 0

    def sample(self) -> int:
        total = sum(pss_bytes(pid) for pid in {process.pid for process in self._tree()})
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.sample)
            await asyncio.sleep(SAMPLE_SECONDS)
