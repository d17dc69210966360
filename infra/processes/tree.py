"""Finding and ending every process of an execution.

A process belongs to an execution if it descends from its runner (a child subreaper, so double-forked and setsid'ed
ones stay below it) or carries the execution's marker in its environment. The second finds what is left when the
runner itself was killed; a process that then also cleared its environment is beyond reach without a pid namespace.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from infra.processes.identity import ProcessIdentity, boot_id, read_stat

MARKER = "GYRE_EXECUTION_DIR"
"""Environment variable that marks every process of an execution; its value is the execution's folder."""


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    """Direct children of `pid`, zombies included."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return found
    return found


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, zombies included."""
    found: list[int] = []
    seen, frontier = {pid}, [pid]
    while frontier:
        below = [child for child in children(frontier.pop()) if child not in seen]
        seen.update(below)
        frontier += below
        found += below
    return found


def marked(folder: str) -> list[int]:
    """Processes whose environment says they belong to the execution in `folder`."""
    needle = f"{MARKER}={folder}".encode()
    found: list[int] = []
    for pid in all_pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if needle in environment.split(b"\0"):
            found.append(pid)
    return found


def living(pids: Iterable[int]) -> list[ProcessIdentity]:
    """Identities of those of `pids` that run; zombies and vanished ones are left out."""
    boot = boot_id()
    found: list[ProcessIdentity] = []
    for pid in sorted(set(pids)):
        stat = read_stat(pid)
        if stat is not None and not stat.dead:
            found.append(ProcessIdentity(pid, stat.start_ticks, boot))
    return found


def end_all(
    find: Callable[[], list[ProcessIdentity]],
    *,
    grace_seconds: float,
    bound_seconds: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
) -> list[ProcessIdentity]:
    """TERM, wait `grace_seconds`, then KILL until `find` finds nothing; returns who survived the bound.

    Before killing everything found is stopped and looked for again, so that one that forks faster than it is killed
    cannot get away. `pause` is called between looks (a runner reaps and drains pipes in it).
    """
    if grace_seconds > 0:
        for process in find():
            process.send(signal.SIGTERM)
            process.send(signal.SIGCONT)
        deadline = time.monotonic() + grace_seconds
        while find() and time.monotonic() < deadline:
            pause(0.02)
    deadline = time.monotonic() + bound_seconds
    survivors = find()
    while survivors and time.monotonic() < deadline:
        for process in survivors:
            process.send(signal.SIGSTOP)
        for process in find():
            process.send(signal.SIGKILL)
        pause(0.02)
        survivors = find()
    return survivors
