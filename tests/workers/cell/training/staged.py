"""Pipeline stages as threads of this process: the real schedule, stages and orders, over queues instead of sockets."""

import threading
from multiprocessing import Pipe
from pathlib import Path
from queue import Queue

import torch
from torch import Tensor

from infra.weights.architecture import Architecture
from infra.weights.layout import FlatLayout
from workers.cell.training.model import build_model
from workers.cell.training.parts import stages_of
from workers.cell.training.pipeline.chain import Chain
from workers.cell.training.pipeline.front import Pipeline
from workers.cell.training.pipeline.orders import Frames, Order, Report
from workers.cell.training.pipeline.replicas import Replica, Replicated
from workers.cell.training.pipeline.stage import Stage, StageServer
from workers.cell.training.whole import HostPolicy

WAIT_SECONDS = 200


class QueueLink:
    """A pipeline's Link between neighbours of one process."""

    def __init__(self, before: "QueueLink | None" = None) -> None:
        self._down: Queue[Tensor] = Queue()
        self._up: Queue[Tensor | None] = Queue()
        self._before = before

    def send_forward(self, hidden: Tensor) -> None:
        self._down.put(hidden.detach().clone())

    def receive_forward(self, tokens: int) -> Tensor:
        assert self._before is not None
        hidden = self._before._down.get(timeout=WAIT_SECONDS).requires_grad_()
        assert len(hidden) == tokens
        return hidden

    def send_backward(self, gradient: Tensor | None) -> None:
        assert self._before is not None
        self._before._up.put(None if gradient is None else gradient.clone())

    def receive_backward(self, tokens: int) -> Tensor | None:
        return self._up.get(timeout=WAIT_SECONDS)

    def settle(self) -> None:
        """What was sent is a copy."""


def pipeline_of_threads(folder: Path, stages: int, dtype: torch.dtype = torch.float32) -> Pipeline:
    """Ends with `close`, or with the process."""
    arch, link = Architecture.from_folder(folder), QueueLink()
    first = Stage(build_model(arch, stages_of(arch, stages)[0], dtype), link, 0, stages)
    chain = _chain(arch, stages, dtype, link)
    return Pipeline(HostPolicy(arch, dtype), first, chain, abandon=lambda: None)


def replicas_of_threads(folder: Path, stages: int, replicas: int, dtype: torch.dtype = torch.float32) -> Replicated:
    """The same with more copies of the model."""
    arch, front = Architecture.from_folder(folder), pipeline_of_threads(folder, stages, dtype)
    return Replicated(front, [Replica(_chain(arch, stages, dtype, None)) for _ in range(replicas - 1)])


def _chain(arch: Architecture, stages: int, dtype: torch.dtype, link: QueueLink | None) -> Chain:
    """The stages after the one with `link`, or all of them."""
    first, frames, parts = int(link is not None), [], stages_of(arch, stages)
    for number in range(first, stages):
        link = QueueLink(link)
        stage = Stage(build_model(arch, parts[number], dtype), link, number, stages)
        ours, theirs = Pipe()
        server = StageServer(stage, Frames(theirs, Order, lost=lambda: None))
        threading.Thread(target=_serve, args=(server, theirs), daemon=True).start()
        frames.append(Frames(ours, Report, lost=lambda: None))
    return Chain(frames, [FlatLayout.of(part.shapes(arch)) for part in parts[first:]], dtype)


def _serve(server: StageServer, connection) -> None:
    try:
        server.serve()
    except EOFError:
        return
    finally:
        connection.close()
