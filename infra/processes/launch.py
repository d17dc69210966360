"""The worker's side of a runner: start it detached, follow it to its result, stop it, clean up after a lost one.

The runner is named by a command line, so this module knows nothing of the package that holds it. Everything about a
run is read from its folder (`infra.processes.job`): any worker can follow a run that another one started.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infra.processes.identity import ProcessIdentity
from infra.processes.job import Job, Result, Started
from infra.processes.tree import end_all, living, marked

START_SECONDS = 60.0
"""How long a runner may take to report that it started (a busy machine), before it counts as lost."""


def end_marked(marker: str, *, grace_seconds: float = 0.0) -> int:
    """End every process that carries `marker` (an execution's folder); returns how many survived. Blocks."""
    return len(end_all(lambda: living(marked(marker)), grace_seconds=grace_seconds))


@dataclass
class Runners:
    """Starts and follows runners. `checkout` is the folder whose packages the runner is started from."""

    checkout: Path
    module: str = "workers.harness_host.runner"
    poll_seconds: float = 0.1
    _children: set[int] = field(default_factory=set)

    def start(self, folder: Path, job: Job) -> None:
        """Begin `job` in `folder`; nothing happens if a run was begun there before."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not begun(folder):
            job.save(folder)
            self.spawn(folder)

    def resume(self, folder: Path) -> None:
        """Begin the job saved in `folder` if the worker that saved it did not live to start its runner."""
        if not begun(folder):
            self.spawn(folder)

    def spawn(self, folder: Path) -> None:
        """Start a runner for the job saved in `folder`. If another one holds it, the new one ends at once."""
        log = str(folder / "runner.log")
        argv = [sys.executable, "-S", "-P", "-m", self.module, str(folder)]
        env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(self.checkout), "LANG": "C.UTF-8"}
        pid = os.posix_spawn(
            sys.executable,
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._children.add(pid)

    def reap(self) -> None:
        """Collect runners of this process that have ended, so that none stays a zombie."""
        for pid in list(self._children):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._children.discard(pid)

    async def follow(self, folder: Path, *, beat: Callable[[], None] | None = None) -> Result:
        """Wait for the result of the run in `folder`; `beat` is called at every look. Never starts anything.

        A runner that died leaves `end == "runner_lost"`; its command's processes may then still be alive.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            self.reap()
            if beat:
                beat()
            started = Started.load(folder)
            gone = not started.runner.alive() if started else time.monotonic() > deadline
            # Read after the look at the runner: its last act is to write the result.
            result = Result.load(folder)
            if result:
                return result
            if gone:
                return Result(end="runner_lost", detail=_last_words(folder), ended_at=time.time())
            await asyncio.sleep(self.poll_seconds)

    async def stop(self, folder: Path, *, marker: str, grace_seconds: float) -> Result:
        """End the run in `folder`, politely first; returns its result, ``cancelled`` if there is none."""
        self.reap()
        if Result.load(folder) is None and (folder / "job.json").exists():
            await self._stop_runner(folder, grace_seconds)
        await asyncio.to_thread(end_marked, marker)
        self.reap()
        result = Result.load(folder)
        if result is None:
            # Saved, so that a runner which only now gets round to starting sees that it must not.
            result = Result(end="cancelled", ended_at=time.time())
            if folder.exists():
                result.save(folder)
        return result

    async def _stop_runner(self, folder: Path, grace_seconds: float) -> None:
        bound = time.monotonic() + grace_seconds + 15
        asked = False
        while Result.load(folder) is None and time.monotonic() < bound:
            started = Started.load(folder)
            if started and not started.runner.alive():
                return
            if started and not asked:
                asked = started.runner.send(signal.SIGTERM)
            await asyncio.sleep(self.poll_seconds / 2)
            self.reap()
        runner = running(folder)
        if runner:
            runner.send(signal.SIGKILL)


def begun(folder: Path) -> bool:
    """Whether a runner has started, or ended, the run in `folder`."""
    return (folder / "result.json").exists() or (folder / "runner.json").exists()


def running(folder: Path) -> ProcessIdentity | None:
    """The living runner of the run in `folder`, if there is one."""
    started = Started.load(folder)
    return started.runner if started and started.runner.alive() else None


def _last_words(folder: Path) -> str:
    """What a lost runner wrote before it died."""
    log = folder / "runner.log"
    text = log.read_text(errors="replace")[-1000:] if log.exists() else ""
    return f"the runner ended without a result {text}".strip()
