"""Bringing a cell's stages together: the first in this process, every other in one of its own, all on this host.

On CUDA each stage takes the device of its number among those that are visible; nothing here has been tried on a GPU.
A cell over several hosts needs a launcher of its own for `process`; the rest only needs addresses.
"""

import torch

from infra.weights.architecture import Architecture
from infra.weights.layout import FlatLayout
from workers.cell.training.backend import StageGroups, host_store, join_stages
from workers.cell.training.model import build_model
from workers.cell.training.parts import stages_of
from workers.cell.training.pipeline.children import StageProcesses
from workers.cell.training.pipeline.front import Pipeline
from workers.cell.training.pipeline.link import MegatronLink
from workers.cell.training.pipeline.orders import Frames, Report
from workers.cell.training.pipeline.stage import Stage
from workers.cell.training.whole import HostPolicy

JOIN_SECONDS = 300.0


def start_pipeline(processes: StageProcesses) -> Pipeline:
    """Join the stages and build the first. Raises InvalidInput if the model cannot be cut so."""
    return join(processes)[0]


def join(processes: StageProcesses) -> tuple[Pipeline, list[Frames], StageGroups]:
    """The pipeline, and what it is made of."""
    arch, stages = Architecture.from_folder(processes.folder), processes.stages
    parts, dtype = stages_of(arch, stages), getattr(torch, processes.dtype)
    store = host_store(stages, JOIN_SECONDS)
    connections = processes.meet(store.port)
    groups = join_stages(store.port, 0, stages, store=store)
    model = build_model(arch, part=parts[0], dtype=dtype)
    stage = Stage(model, MegatronLink(model, groups.forward, groups.backward), 0, stages)
    others = [Frames(connection, Report, lost=processes.abandon) for connection in connections]
    layouts = [FlatLayout.of(part.shapes(arch)) for part in parts[1:]]
    return Pipeline(HostPolicy(arch, dtype), stage, others, layouts, abandon=processes.abandon), others, groups
