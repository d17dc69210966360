"""Bringing a cell's stages together: the first in this process, every other in one of its own, all on this host.

On CUDA each stage takes the device of its number among those that are visible; nothing here has been tried on a GPU.
A cell over several hosts needs a launcher of its own for `process`; the rest only needs addresses.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from infra.weights.architecture import Architecture
from infra.weights.layout import FlatLayout
from workers.cell.training.backend import StageGroups, host_store, is_device_busy, join_stages
from workers.cell.training.model import build_model
from workers.cell.training.parts import stages_of
from workers.cell.training.pipeline.chain import Chain
from workers.cell.training.pipeline.children import StageProcesses
from workers.cell.training.pipeline.front import Pipeline
from workers.cell.training.pipeline.link import Alone, MegatronLink
from workers.cell.training.pipeline.orders import Frames, Order, Report
from workers.cell.training.pipeline.pulse import QUIET_LOOKS, Progress, StallWatch
from workers.cell.training.pipeline.replicas import Replica, Replicated
from workers.cell.training.pipeline.stage import Stage
from workers.cell.training.stream import MicroStepStream
from workers.cell.training.whole import HostPolicy

JOIN_SECONDS = 300.0


def start_stream(own: StageProcesses, others: Sequence[StageProcesses]) -> MicroStepStream:
    """The stream of a cell with several stages, or several replicas of them. Raises InvalidInput if the model cannot be
    cut so."""
    pipeline, _ = join(own)
    progress = pipeline.others.progress
    replicas = [Replica(_chain(processes, progress)[0]) for processes in others]
    chains = [pipeline.others, *(replica.chain for replica in replicas)]
    frames = [one for chain in chains for one in chain.frames]
    StallWatch(progress, lambda: [one.last_beat for one in frames], own.abandon, own.beat_seconds).start()
    return Replicated(pipeline, replicas) if replicas else pipeline


def join(processes: StageProcesses) -> tuple[Pipeline, StageGroups | None]:
    """Join the stages after the first, and build the first here."""
    arch, stages, dtype = _model(processes)
    part = stages_of(arch, stages)[0]
    progress = Progress()
    chain, store = _chain(processes, progress)
    groups = join_stages(store.port, 0, stages, store=store) if stages > 1 else None
    model = build_model(arch, part=part, dtype=dtype)
    link = Alone() if groups is None else MegatronLink(model, groups.forward, groups.backward)
    stage = Stage(model, link, 0, stages, progress)
    progress.is_device_busy = partial(is_device_busy, stage.device)
    return Pipeline(HostPolicy(arch, dtype), stage, chain, abandon=processes.abandon), groups


def _chain(processes: StageProcesses, progress: Progress) -> tuple[Chain, TCPStore]:
    arch, stages, dtype = _model(processes)
    store = host_store(stages, JOIN_SECONDS)
    frames = [
        Frames(
            one,
            Report,
            lost=processes.abandon,
            beat=lambda: Order(op="beat"),
            quiet_looks=QUIET_LOOKS,
            beat_seconds=processes.beat_seconds,
        )
        for one in processes.meet(store)
    ]
    layouts = [FlatLayout.of(part.shapes(arch)) for part in stages_of(arch, stages)[processes.first :]]
    return Chain(frames, layouts, dtype, progress), store


def _model(processes: StageProcesses) -> tuple[Architecture, int, torch.dtype]:
    return Architecture.from_folder(processes.folder), processes.stages, getattr(torch, processes.dtype)
