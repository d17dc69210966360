"""Starting a cell's stages: the first in this process, every other in one of its own, all on this host.

On CUDA each stage takes the device of its number among those that are visible. Not tried on CUDA: nothing here has run
on a GPU. Cells over several hosts need a launcher of their own for `process`; the rest only needs addresses.
"""

import os
import secrets
import subprocess
import sys
from multiprocessing.connection import Listener
from pathlib import Path

import torch

from infra.weights.architecture import Architecture
from infra.weights.layout import FlatLayout
from workers.cell.training.backend import host_store, join_stages
from workers.cell.training.model import build_model
from workers.cell.training.parts import stages_of
from workers.cell.training.pipeline.front import Pipeline
from workers.cell.training.pipeline.link import MegatronLink
from workers.cell.training.pipeline.orders import Frames, Report
from workers.cell.training.pipeline.process import KEY_VARIABLE
from workers.cell.training.pipeline.stage import Stage
from workers.cell.training.whole import HostPolicy
from workflows.messages.errors import ActorUnavailable

JOIN_SECONDS = 300.0
LOST_EXIT = 70


def start_pipeline(folder: Path, stages: int, dtype: torch.dtype = torch.float32) -> Pipeline:
    """Start stages 1 .. and join them. Call from the main thread: the others die when the thread that called ends.

    Raises InvalidInput if the model cannot be cut so, ActorUnavailable if a stage does not come up. From then on the
    death of a stage ends this process with code 70.
    """
    arch = Architecture.from_folder(folder)
    parts = stages_of(arch, stages)
    store, key = host_store(stages, JOIN_SECONDS), secrets.token_hex(16)
    with Listener(("127.0.0.1", 0), authkey=key.encode()) as listener:
        control = listener.address[1]
        children = [_start(folder, stage, stages, store.port, int(control), dtype, key) for stage in range(1, stages)]
        try:
            groups = join_stages(store.port, 0, stages, store=store)
        except RuntimeError as error:
            codes = [child.poll() for child in children]
            raise ActorUnavailable(f"the stages did not come together (exit codes {codes}): {error}") from error
        model = build_model(arch, part=parts[0], dtype=dtype)
        connections = dict(_accept(listener) for _ in children)

    def abandon() -> None:
        os._exit(LOST_EXIT)

    others = [Frames(connections[stage], Report, lost=abandon) for stage in range(1, stages)]
    stage = Stage(model, MegatronLink(model, groups.forward, groups.backward), 0, stages)
    layouts = [FlatLayout.of(part.shapes(arch)) for part in parts[1:]]
    return Pipeline(HostPolicy(arch, dtype), stage, others, layouts, abandon)


def _accept(listener: Listener):
    connection = listener.accept()
    return int(connection.recv_bytes()), connection


def _start(
    folder: Path, stage: int, stages: int, store: int, control: int, dtype: torch.dtype, key: str
) -> subprocess.Popen[bytes]:
    options = {
        "stage": stage,
        "stages": stages,
        "model": folder,
        "store": store,
        "control": control,
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
        "parent": os.getpid(),
    }
    command = [sys.executable, "-m", "workers.cell.training.pipeline.process"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return subprocess.Popen(command, env={**os.environ, KEY_VARIABLE: key}, stdin=subprocess.DEVNULL)
