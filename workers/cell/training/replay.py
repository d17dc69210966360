"""Recomputes the gradient of a recorded batch on one process, from its records alone.

What each cell summed is summed again in the order in which that cell did it, then the cells' sums in their fixed order,
so on the same kind of machine with the same number of threads the result is the same to the last bit. Elsewhere the
norm and the largest difference tell drift from rounding.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from sqlalchemy import Engine, select
from torch import Tensor

from infra.checkpoints import CheckpointStore
from infra.micro_steps import PackedMicroStep, decode
from infra.objects import ObjectStore
from infra.records.schema import batches, claims, micro_steps, updates
from infra.weights.architecture import Architecture
from infra.weights.checksum import weights_checksum
from infra.weights.folder import load_weights
from infra.weights.layout import FlatLayout
from workers.cell.training.combine import CombinedGradient, normalise_and_clip, sum_in_order
from workers.cell.training.model import build_model
from workers.cell.training.parts import EMBEDDING, HEAD, ModelPart
from workers.cell.training.reference import ReferencePolicies
from workers.cell.training.stream import SingleStageStream
from workflows.messages.base import Message
from workflows.messages.burst import Training
from workflows.messages.errors import AuditFailure, ChecksumMismatch, InvalidInput, VersionMismatch


class BatchReplay(Message):
    """A recorded gradient and the recomputed one. `same_bits`: their checksums are equal."""

    batch: str
    version: int
    micro_steps: int
    cells: tuple[int, ...]
    recorded_norm: float
    norm: float
    recorded_checksum: str
    checksum: str
    seconds: float

    @property
    def same_bits(self) -> bool:
        return self.checksum == self.recorded_checksum

    @property
    def norm_error(self) -> float:
        """Relative to the recorded norm."""
        return abs(self.norm - self.recorded_norm) / max(self.recorded_norm, 1e-12)


@dataclass(frozen=True)
class RecordedBatch:
    """What the records say of a batch that made an update. `order`: cell -> lane -> micro-steps as they were summed."""

    batch: str
    version: int
    weights_checksum: str
    checkpoint: str
    settings: Training
    normalizer: int
    norm: float
    checksum: str
    order: dict[int, dict[int, list[int]]]
    payloads: dict[int, tuple[str, str]]
    """uri and sha256 of each micro-step."""


def recorded(engine: Engine, batch: str) -> RecordedBatch:
    """Raises InvalidInput for an unknown batch or one without an update, AuditFailure for records that do not fit."""
    with engine.connect() as connection:
        row = connection.execute(select(batches).where(batches.c.batch == batch)).first()
        if row is None:
            known = connection.execute(select(batches.c.batch).order_by(batches.c.opened_at)).scalars().all()
            raise InvalidInput(f"no batch {batch!r}; the run has {', '.join(known) or 'none'}", field="batch")
        if not row.gradient_checksum:
            raise InvalidInput("made no update, so there is no gradient to compare with", field="batch")
        before = connection.execute(select(updates).where(updates.c.version == row.version_before)).one()
        done = connection.execute(select(claims).where(claims.c.batch == batch, claims.c.done_at.is_not(None))).all()
        stored = connection.execute(select(micro_steps).where(micro_steps.c.batch == batch)).all()
    accepted = {(entry["index"], entry["attempt"], entry["cell"], entry["boot_epoch"]) for entry in row.accepted}
    order: dict[int, dict[int, list[int]]] = {}
    for claim in sorted(done, key=lambda claim: ((claim.metrics or {}).get("order", 0), claim.done_at)):
        if (claim.micro_step, claim.attempt, claim.cell, claim.boot_epoch) in accepted:
            lane = int((claim.metrics or {}).get("lane", 0))
            order.setdefault(claim.cell, {}).setdefault(lane, []).append(claim.micro_step)
    counted = sum(len(steps) for lanes in order.values() for steps in lanes.values())
    if counted != len(accepted):
        raise AuditFailure(f"{len(accepted)} micro-steps counted, {counted} claims are done")
    return RecordedBatch(
        batch=batch,
        version=row.version_before,
        weights_checksum=before.checksum,
        checkpoint=before.checkpoint,
        settings=Training.model_validate(row.settings),
        normalizer=row.normalizer,
        norm=float(row.metrics["grad_norm"]),
        checksum=row.gradient_checksum,
        order=order,
        payloads={step.micro_step: (step.uri, step.sha256) for step in stored},
    )


def replay(
    found: RecordedBatch, *, base: Path, checkpoints: Path, objects: ObjectStore, staged: frozenset[int] = frozenset()
) -> BatchReplay:
    """Recompute. `staged`: the cells that computed in several pipeline stages.

    Raises VersionMismatch if the weights it needs are not kept any more, or are other ones.
    """
    started = time.monotonic()
    weights, arch = load_weights(_weights_folder(found, base, checkpoints)), Architecture.from_folder(base)
    if weights_checksum(weights) != found.weights_checksum:
        raise VersionMismatch(f"the weights of version {found.version} here are not those the batch started from")
    references = ReferencePolicies(base)
    sums: list[Tensor] = []
    for cell, own_head in sorted((cell, cell in staged) for cell in found.order):
        model = build_model(arch, ModelPart.whole(arch, own_head=own_head))
        model.load_hf(weights)
        stream = SingleStageStream(model, references)
        lanes = [
            cell_sum(stream, [_fetch(objects, *found.payloads[index]) for index in indices], found.settings)
            for _, indices in sorted(found.order[cell].items())
        ]
        sums.append(sum_in_order(lanes[0], lanes[1:]))
    combined = combine(sums, found.normalizer, found.settings.max_grad_norm)
    return BatchReplay(
        batch=found.batch,
        version=found.version,
        micro_steps=sum(len(steps) for lanes in found.order.values() for steps in lanes.values()),
        cells=tuple(sorted(found.order)),
        recorded_norm=found.norm,
        norm=combined.norm,
        recorded_checksum=found.checksum,
        checksum=combined.checksum,
        seconds=time.monotonic() - started,
    )


def cell_sum(stream: SingleStageStream, steps: Sequence[PackedMicroStep], settings: Training) -> Tensor:
    """fp32 [elements]: the gradients of `steps`, added one after the other as an actor does with those of one lane.

    In several stages, a tied embedding's two uses are summed apart and added up at the end, and so they are here if the
    stream's model has a head of its own.
    """
    model = stream.whole
    parameters = dict(model.named_parameters())
    layout = FlatLayout.of({name: tuple(parameter.shape) for name, parameter in parameters.items()})
    flat = torch.zeros(layout.elements, dtype=torch.float32)
    for name, view in layout.views(flat).items():
        parameters[name].grad = view
    for step in steps:
        stream.run(step, settings.loss)
    stream.drain()
    for parameter in parameters.values():
        parameter.grad = None
    if model.arch.tied and model.part.own_head:
        return _with_both_uses(layout, flat)
    return flat


def _with_both_uses(layout: FlatLayout, flat: Tensor) -> Tensor:
    views = layout.views(flat)
    views[EMBEDDING] += views.pop(HEAD)
    return torch.cat([views[name].flatten() for name in sorted(views)])


def combine(sums: Sequence[Tensor], normalizer: int, max_norm: float) -> CombinedGradient:
    return normalise_and_clip(sum_in_order(sums[0], sums[1:]), normalizer, max_norm)


def _weights_folder(found: RecordedBatch, base: Path, checkpoints: Path) -> Path:
    if not found.checkpoint:
        return base
    for kept in CheckpointStore(checkpoints).list():
        if kept.folder.name == found.checkpoint:
            return kept.folder
    raise VersionMismatch(f"the checkpoint of version {found.version} is gone (keep_checkpoints of the fleet file)")


def _fetch(objects: ObjectStore, uri: str, sha256: str) -> PackedMicroStep:
    blob = objects.read(uri)
    if hashlib.sha256(blob).hexdigest() != sha256:
        raise ChecksumMismatch(f"{uri}: stored bytes are not those that were packed")
    return decode(blob)
