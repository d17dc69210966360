"""A server process on one core: started, waited for, its CPU time read, ended with all its children."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx2

from infra.processes.tree import descendants
from workflows.messages.errors import Transient

START_SECONDS = 300.0
STOP_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started inside stays on `core`; this process returns to where it was."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """One server process in a session of its own; its output goes to `log`."""

    def __init__(
        self, argv: Sequence[str], *, core: int, log: Path, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output, on_core(core):
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def answers(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        """Return once `url` answers 200. Raises Transient when the process ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(timeout=2.0, trust_env=False, verify=False) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise Transient(f"{self.log.stem} exited with {self._process.returncode}:\n{self._tail()}")
                with contextlib.suppress(httpx2.HTTPError):
                    if (await client.get(url, headers=dict(headers or {}))).status_code == 200:
                        return
                await asyncio.sleep(0.1)
        raise Transient(f"{url} did not answer in {START_SECONDS:g} s:\n{self._tail()}")

    def cpu_seconds(self) -> float:
        """User and system time of the process and all below it since they started, ended children included."""
        return sum(_cpu_seconds(pid) for pid in (self.pid, *descendants(self.pid)))

    def stop(self) -> None:
        """TERM, then KILL; its children go with it."""
        family = [self.pid, *descendants(self.pid)]
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        for pid in family:
            if pid != self.pid or self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def _cpu_seconds(pid: int) -> float:
    """utime, stime, cutime and cstime of /proc/PID/stat; 0 for one that has gone (its parent has its time)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = text.rsplit(")", 1)[1].split()
    return sum(int(value) for value in fields[11:15]) / _TICKS
