"""Starting, watching and ending a training actor's process.

The child asks the kernel to be killed when the thread that started it ends, so it never outlives its cell worker: start
it from the worker's main thread.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from infra.actor.client import ActorClient
from infra.actor.wire import KEY_VARIABLE
from infra.settings.fleet import PacedTrainer
from infra.settings.run import RunManifest
from workflows.messages.errors import ActorUnavailable
from workflows.messages.training import ActorStatus

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class ActorLaunch:
    """Everything the command line of an actor says. With a `pace` it is the paced trainer, which computes nothing."""

    cell: int
    boot_epoch: int
    port: int
    model: Path
    checkpoints: Path
    objects_url: str
    log: Path
    root: Path
    threads: int = 1
    stages: int = 1
    replicas: int = 1
    combine: str = "reads"
    keep_checkpoints: int = 3
    pace: PacedTrainer | None = None

    @classmethod
    def of(cls, run: RunManifest, cell: int, boot_epoch: int) -> "ActorLaunch":
        return cls(
            cell=cell,
            boot_epoch=boot_epoch,
            port=run.actor_ports[cell],
            model=run.model_folder,
            checkpoints=run.checkpoints,
            objects_url=run.object_store_url,
            log=run.logs / f"actor-{cell}.log",
            root=Path(run.root),
            threads=run.fleet.training_threads,
            stages=run.fleet.cells[cell].stages,
            replicas=run.fleet.cells[cell].replicas,
            combine=run.fleet.combine,
            keep_checkpoints=run.fleet.keep_checkpoints,
            pace=run.fleet.paced_trainer if run.fleet.trainer == "paced" else None,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        options = {
            "cell": self.cell,
            "boot-epoch": self.boot_epoch,
            "port": self.port,
            "model": self.model,
            "checkpoints": self.checkpoints,
            "objects": self.objects_url,
            "threads": self.threads,
            "stages": self.stages,
            "replicas": self.replicas,
            "combine": self.combine,
            "keep-checkpoints": self.keep_checkpoints,
            "parent": os.getpid(),
        }
        if self.pace is not None:
            options["pace"] = self.pace.model_dump_json()
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [sys.executable, "-m", "workers.cell.training", *arguments]


class ActorProcess:
    """One running actor. `key` protects its control routes and reaches it through the environment only."""

    def __init__(self, launch: ActorLaunch, key: str) -> None:
        self.launch, self._key = launch, key
        self._process: asyncio.subprocess.Process | None = None

    def client(self, *, timeout_seconds: float = 300.0) -> ActorClient:
        return ActorClient(self.launch.url, self._key, timeout_seconds=timeout_seconds)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, *, ready_seconds: float = 120.0) -> ActorStatus:
        """Start and wait until it answers. Raises ActorUnavailable, with the end of its log, if it does not."""
        self.launch.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            KEY_VARIABLE: self._key,
            "OMP_NUM_THREADS": str(self.launch.threads),
            "PYTHONPATH": str(self.launch.root),
        }
        with self.launch.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.launch.command(),
                cwd=self.launch.root,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = asyncio.get_running_loop().time() + ready_seconds
        async with self.client() as client:
            while self.is_alive and asyncio.get_running_loop().time() < deadline:
                try:
                    status = await client.status()
                except ActorUnavailable:
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                if status.pid == self.pid:
                    return status
                await self.stop()
                raise ActorUnavailable(f"port {self.launch.port} is served by another process, {status.pid}")
        what = "did not answer in time" if self.is_alive else f"ended with code {self._process.returncode}"
        await self.stop()
        raise ActorUnavailable(f"training actor of cell {self.launch.cell} {what}: {self._end_of_log()}")

    async def wait(self) -> int:
        """Return its exit code when it has died; raises ActorUnavailable if it was never started."""
        if self._process is None:
            raise ActorUnavailable(f"training actor of cell {self.launch.cell} was never started")
        return await self._process.wait()

    async def stop(self, *, grace_seconds: float = 5.0) -> None:
        """End it: TERM, then KILL. Ending a dead one is harmless."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _end_of_log(self) -> str:
        try:
            return self.launch.log.read_text(errors="replace")[-1500:]
        except OSError as error:
            return f"(no log: {error})"
