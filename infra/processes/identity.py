"""Which process a pid means: a pid alone may be re-used, a pid with its start time and boot is unique.

Reads /proc only. A process that vanishes while it is looked at is simply gone, never an error.
"""

import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class ProcessStat:
    """One line of /proc/<pid>/stat, as far as it is used. `start_ticks` counts clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    resident_pages: int

    @property
    def dead(self) -> bool:
        """A zombie has ended; it only waits to be reaped."""
        return self.state in "ZXx"


def read_stat(pid: int) -> ProcessStat | None:
    """The stat line of `pid`, or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command name may hold blanks and brackets; the fields start after its last bracket.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        resident_pages=int(fields[21]),
    )


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that can be recognised again, also after its pid was re-used or the machine restarted."""

    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The identity of a running process, or None if there is none."""
        stat = read_stat(pid)
        return None if stat is None or stat.dead else cls(pid, stat.start_ticks, boot_id())

    def alive(self) -> bool:
        stat = read_stat(self.pid)
        return stat is not None and not stat.dead and stat.start_ticks == self.start_ticks and self.boot == boot_id()

    def send(self, number: signal.Signals) -> bool:
        """Signal this very process; False if it is gone. Safe against pid re-use."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(descriptor)
        return True
