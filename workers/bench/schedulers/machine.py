"""How busy the machine was: a comparison that ran into its processors measured them, not the schedulers."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Clock:
    """Processor seconds since boot, all processors together: at work, and in all.

    What was started with a positive niceness gives way to a comparison, so its own seconds are not counted as work.
    """

    busy: float
    total: float

    @classmethod
    def now(cls) -> "Clock":
        return cls.of(Path("/proc/stat").read_text())

    @classmethod
    def of(cls, stat: str) -> "Clock":
        """Read from the first line of `/proc/stat`."""
        fields = [int(value) for value in stat.split("\n", 1)[0].split()[1:9]]
        _, nice, _, idle, waiting, *_ = fields
        ticks, total = os.sysconf("SC_CLK_TCK"), sum(fields)
        return cls((total - nice - idle - waiting) / ticks, total / ticks)

    def share_since(self, before: "Clock") -> float:
        """Busy share of all processors between two moments."""
        return (self.busy - before.busy) / max(self.total - before.total, 1e-9)
