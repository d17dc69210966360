"""One supervised process: started, watched, started again with a growing pause, stopped.

It runs in a session of its own: a Ctrl-C at the terminal reaches the supervisor alone.
"""

import asyncio
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from pathlib import Path

from workers.supervisor.components import ComponentSpec
from workers.supervisor.journal import Journal, StackEvent

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
HEALTHY_SECONDS = 60.0
"""Up for this long, a component's earlier deaths are forgotten."""

_LOG_LIMIT_BYTES = 64 << 20
_TAIL_BYTES = 4096


def pause_seconds(deaths: int) -> float:
    """Pause before the start after the `deaths`-th death in a row (from 1): 1, 2, 4, ... at most 30 s."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (deaths - 1))


class SupervisedProcess:
    """`deaths` counts deaths in a row, `restarts` all restarts."""

    def __init__(
        self,
        spec: ComponentSpec,
        *,
        folder: Path,
        cwd: Path,
        environment: Mapping[str, str],
        journal: Journal,
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        self.spec = spec
        self.log = folder / f"{spec.name}.log"
        self.deaths = 0
        self.restarts = 0
        self.started_at = 0.0
        self._cwd, self._environment, self._journal, self._before_exec = cwd, environment, journal, before_exec
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and watch it from now on. Raises OSError when it cannot be executed at all."""
        await self._launch()
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.spec.name}")

    @property
    def pid(self) -> int | None:
        """The living process, None while it is dead."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def kill(self, number: signal.Signals) -> int:
        """Signal the process; returns its pid. Raises ProcessLookupError while it is dead."""
        if self._process is None or self._process.returncode is not None:
            raise ProcessLookupError(f"{self.spec.name} is not running")
        self._process.send_signal(number)
        return self._process.pid

    async def stop(self) -> None:
        """TERM, then KILL after the component's grace; returns when the process is gone and not watched any more."""
        self._stopping.set()
        if self._watcher is None:
            return
        if self.pid is not None and self._process is not None:
            self._note("stopping")
            self._process.terminate()
        _, late = await asyncio.wait({self._watcher}, timeout=self.spec.grace_seconds)
        if late and self._process is not None and self._process.returncode is None:
            self._note("killed", f"still running {self.spec.grace_seconds:g} s after TERM")
            self._process.kill()
        await self._watcher
        self._note("stopped")

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log, for an error message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    async def _launch(self) -> None:
        self._roll_log()
        self.started_at = time.time()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env=dict(self._environment),
                start_new_session=True,
                preexec_fn=self._before_exec,
            )
        self._note("started", pid=self._process.pid)
        if self._stopping.is_set():
            self._process.terminate()  # asked to stop while it was being started

    async def _watch(self) -> None:
        while self._process is not None:
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            self.deaths = 1 if time.time() - self.started_at >= HEALTHY_SECONDS else self.deaths + 1
            self._note("died", f"{_how(code)} after {time.time() - self.started_at:.1f} s; log: {self.log}")
            if not await self._relaunch():
                return

    async def _relaunch(self) -> bool:
        """Start again after the pause; False when asked to stop meanwhile."""
        while True:
            pause = pause_seconds(self.deaths)
            self._note("restarting", f"in {pause:g} s")
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
                return False
            except TimeoutError:
                pass  # the pause is over and nobody asked to stop
            try:
                await self._launch()
            except OSError as error:
                self.deaths += 1
                self._note("died", f"cannot be started: {error}")
                continue
            self.restarts += 1
            return True

    def _roll_log(self) -> None:
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))

    def _note(self, event: str, detail: str = "", pid: int | None = None) -> None:
        self._journal.write(StackEvent(self.spec.name, event, detail, pid if pid is not None else self.pid))


def _how(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
