"""The processes of a cell's later stages, as the first stage's process sees them: started early, watched to the end.

Imports nothing heavy, so that the stages load their libraries while the first one loads its own. A stage that ends
before it is told to takes this process down with it: the cell is one boot of all its stages.
"""

import logging
import os
import secrets
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING

from workers.cell.training.pipeline.pulse import BEAT_SECONDS

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

log = logging.getLogger(__name__)

KEY_VARIABLE = "GYRE_STAGE_KEY"
LOST_EXIT = 70
STAGE_MODULE = "workers.cell.training.pipeline.process"


class StageProcesses:
    """Stages `first` to `stages` - 1; the ones before are in this process. Make it in the main thread: they die when
    the thread that made it ends."""

    def __init__(
        self,
        folder: Path,
        stages: int,
        threads: int,
        *,
        first: int = 1,
        dtype: str = "float32",
        module: str = STAGE_MODULE,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self.folder, self.stages, self.first, self.dtype = folder, stages, first, dtype
        self.beat_seconds = beat_seconds
        key = secrets.token_hex(16)
        self._listener = Listener(("127.0.0.1", 0), authkey=key.encode())
        self._ending = threading.Event()
        for stage in range(first, stages):
            options = {
                "stage": stage,
                "stages": stages,
                "model": folder,
                "control": self._listener.address[1],
                "threads": threads,
                "dtype": dtype,
                "beat-seconds": beat_seconds,
                "parent": os.getpid(),
            }
            command = [sys.executable, "-m", module]
            command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
            environment = {**os.environ, KEY_VARIABLE: key, "OMP_NUM_THREADS": str(threads)}
            child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
            threading.Thread(target=self._watch, args=(stage, child), name=f"stage-{stage}", daemon=True).start()

    def meet(self, store: "TCPStore") -> list[Connection]:
        """Tell every stage where its process groups meet; the connections, in order of the stages."""
        self._store = store  # as long as there are stages that may ask it
        connections: dict[int, Connection] = {}
        while len(connections) < self.stages - self.first:
            connection = self._listener.accept()
            connections[int(connection.recv_bytes())] = connection
            connection.send_bytes(str(store.port).encode())
        self._listener.close()
        return [connections[stage] for stage in range(self.first, self.stages)]

    def end(self) -> None:
        """From now on they may end."""
        self._ending.set()

    def abandon(self) -> None:
        """End this process at once, and the stages with it."""
        if not self._ending.is_set():
            log.critical("the stages of this cell have come apart; ending with code %d", LOST_EXIT)
            os._exit(LOST_EXIT)

    def _watch(self, stage: int, child: "subprocess.Popen[bytes]") -> None:
        code = child.wait()
        if not self._ending.is_set():
            log.critical("stage %d ended with code %d", stage, code)
            self.abandon()
