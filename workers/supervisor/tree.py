"""Which processes belong to a run: its components and what they started, also after their parents have died.

Components carry the run folder in their environment and hand it down. Harness runners are started without it, to
survive the harness host; they name a folder of the run on their command line, and what they run carries the
execution's folder (`infra.processes.tree`).
"""

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

from infra.processes.identity import ProcessIdentity
from infra.processes.tree import MARKER as EXECUTION_MARKER
from infra.processes.tree import all_pids, living

RUN_MARKER = "GYRE_RUN_DIR"
"""Environment variable of every component; its value is the run folder."""

RUNNER_MODULE = b"workers.harness_host.runner"

_PR_SET_PDEATHSIG = 1


def component_processes(run_dir: Path) -> list[ProcessIdentity]:
    """Living components of the run and what descends from them; harness runners are left out."""
    needle = f"{RUN_MARKER}={run_dir}".encode()
    return living(pid for pid in all_pids() if needle in _read(pid, "environ") and pid != os.getpid())


def harness_processes(run_dir: Path) -> list[ProcessIdentity]:
    """Living harness runners of the run and everything that runs under them."""
    inside = f"{run_dir}/".encode()
    marker = f"{EXECUTION_MARKER}={run_dir}/".encode()

    def belongs(pid: int) -> bool:
        command = _read(pid, "cmdline")
        if RUNNER_MODULE in command and command[-1].startswith(inside):
            return True
        return any(variable.startswith(marker) for variable in _read(pid, "environ"))

    return living(pid for pid in all_pids() if belongs(pid))


def run_processes(run_dir: Path) -> list[ProcessIdentity]:
    """Everything alive that the run started, without the supervisor itself."""
    return component_processes(run_dir) + harness_processes(run_dir)


def tied_to_parent() -> Callable[[], None]:
    """A `preexec_fn`: the child gets SIGTERM when the thread that started it ends, however it ends.

    The C library is looked up here, not after the fork, where only what is already loaded may be touched.
    """
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it ended before the kernel had been asked
            os._exit(0)

    return tie


def _read(pid: int, name: str) -> list[bytes]:
    """A NUL-separated file of /proc; empty when the process is gone or not ours to read."""
    try:
        return [part for part in Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0") if part]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
