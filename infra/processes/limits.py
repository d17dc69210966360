"""Limits of an execution's processes.

What the kernel can hold per process is set before exec (largest file, no core dump, private writable memory). What
counts over the whole tree, processes and resident memory, is sampled by the runner: the kernel's own process limit
counts all tasks of a user (so it is only a wide backstop against a storm between two samples) and exempts root.
"""

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from infra.processes.identity import read_stat
from infra.processes.tree import all_pids, descendants

_STORM_FACTOR = 16
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of one supervised command. Bytes, seconds and counts as named; 0 means none."""

    wall_seconds: float
    grace_seconds: float = 5.0
    output_bytes: int = 1_000_000
    memory_bytes: int = 0
    processes: int = 0
    file_bytes: int = 0


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def apply_in_child(limits: ProcessLimits) -> None:
    """Set the kernel's limits on the calling process; call between fork and exec."""
    _lower(resource.RLIMIT_CORE, 0)
    if limits.file_bytes:
        _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    if limits.memory_bytes:
        # Not RLIMIT_AS: runtimes such as node reserve far more address space than they ever use.
        _lower(resource.RLIMIT_DATA, limits.memory_bytes)
    if limits.processes:
        _lower(resource.RLIMIT_NPROC, _tasks_of_user() + _STORM_FACTOR * limits.processes)
    with contextlib.suppress(OSError):
        # When memory runs out the kernel takes an agent's process before an engine or the runner.
        Path("/proc/self/oom_score_adj").write_text("500")


def _tasks_of_user() -> int:
    """Threads of all processes of the calling user: what RLIMIT_NPROC counts."""
    count, me = 0, os.getuid()
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == me:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


@dataclass(frozen=True)
class Usage:
    """What the tree below a process uses now. `resident_bytes` counts shared pages once per process."""

    processes: int
    resident_bytes: int


def usage_below(pid: int) -> Usage:
    stats = [stat for child in descendants(pid) if (stat := read_stat(child)) is not None and not stat.dead]
    return Usage(len(stats), sum(stat.resident_pages for stat in stats) * _PAGE)


def exceeded(usage: Usage, limits: ProcessLimits) -> str | None:
    """Which limit is exceeded: ``process_limit``, ``memory_limit`` or None."""
    if limits.processes and usage.processes > limits.processes:
        return "process_limit"
    if limits.memory_bytes and usage.resident_bytes > limits.memory_bytes:
        return "memory_limit"
    return None
