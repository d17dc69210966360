"""A rollout engine as a child process of the cell worker: started, awaited, watched, ended.

It lives in a process group of its own (SGLang starts more processes) and dies with the process that started it, see
`leash`. All it says goes to one log file.
"""

import asyncio
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from infra.engine import EngineClient
from workers.cell.rollout.command import HERE, EngineParameters, command_line, environment
from workflows.messages.errors import EngineUnavailable

TAIL_BYTES = 4000
POLL_SECONDS = 0.1


class ChildServer(ABC):
    """One life of an engine process. Start it from the main thread."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line."""

    @abstractmethod
    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of the process."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """None while it lives (or has not been started); negative: ended by that signal."""
        return self._process.poll() if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once; `ready` waits for it."""
        if self.alive:
            raise EngineUnavailable("this engine is running already")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        leash = [sys.executable, "-I", "-S", str(HERE / "leash.py"), str(os.getpid())]
        log: BinaryIO
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*leash, *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self.environment(os.environ),
            )

    async def ready(self, client: EngineClient, timeout_seconds: float = 240.0) -> None:
        """Wait until it answers. Raises EngineUnavailable, with the end of its log, when it dies or takes too long."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while asyncio.get_running_loop().time() < deadline:
            if not self.alive:
                raise EngineUnavailable(f"the engine ended with {self.exit_code}: {self.log_tail()}")
            if await client.healthy():
                return
            await asyncio.sleep(POLL_SECONDS)
        raise EngineUnavailable(f"the engine was not ready in {timeout_seconds:.0f} s: {self.log_tail()}")

    async def died(self) -> int:
        """Return its exit code once it has ended."""
        while (code := self.exit_code) is None:
            await asyncio.sleep(POLL_SECONDS)
        return code

    async def stop(self) -> None:
        """End the whole group and wait for it. Without asking: SGLang's orderly end takes many seconds, saves nothing
        and is what a crash of one of its processes looks like to the others."""
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """End the whole group at once and reap it."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(10)

    def log_tail(self) -> str:
        """The last few kilobytes of its log."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return "(no log)"

    def _signal(self, number: signal.Signals) -> None:
        """To the group: it exists as long as any of its processes does, even when the first has been reaped."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


class EngineServer(ChildServer):
    """One life of a real SGLang server."""

    def __init__(self, parameters: EngineParameters, log_path: Path) -> None:
        super().__init__(log_path)
        self.parameters = parameters

    def command(self) -> list[str]:
        return command_line(self.parameters)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return environment(self.parameters, base)
