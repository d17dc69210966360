"""How busy the machine was: a comparison that ran into its processors measured them, not the schedulers."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Clock:
    """Processor seconds since boot, all processors together: at work, and in all."""

    busy: float
    total: float

    @classmethod
    def now(cls) -> "Clock":
        fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        ticks = os.sysconf("SC_CLK_TCK")
        total, idle = sum(fields), fields[3] + fields[4]
        return cls((total - idle) / ticks, total / ticks)

    def share_since(self, before: "Clock") -> float:
        """Busy share of all processors between two moments."""
        return (self.busy - before.busy) / max(self.total - before.total, 1e-9)
