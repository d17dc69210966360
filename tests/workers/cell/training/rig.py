"""Actors of several cells in this process, each with a transfer engine of its own, and the way a batch drives them."""

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from infra.objects import ObjectStore
from infra.transfer import TransferEndpoint
from infra.weights.architecture import Architecture
from infra.weights.folder import load_weights
from infra.weights.names import to_hf
from tests.workers.cell.training.material import Sampled, pack, put, sampled
from tests.workers.cell.training.staged import pipeline_of_threads, replicas_of_threads
from workers.cell.training.actor import ActorSettings, TrainingActor
from workers.cell.training.stream import MicroStepStream
from workflows.messages import training as m
from workflows.messages.loss import LossSettings

CLIP = {"loss": LossSettings(clip_low=0.2, clip_high=0.28)}
UPDATE = {"learning_rate": 1e-3, "max_grad_norm": 1.0, "weight_decay": 0.1}
BOOT = {"boot_epoch": 1}


def twelve_executions() -> list[Sampled]:
    """Advantages that sum to zero, output lengths 1 to 200."""
    lengths = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 200]
    return [sampled(f"e{k}", (-1.0) ** k * (1 + k % 3), 3 + k, length, seed=5) for k, length in enumerate(lengths)]


@functools.cache
def endpoint(cell: int) -> TransferEndpoint:
    """One transfer engine per cell for the whole session: starting and stopping one takes seconds."""
    return TransferEndpoint()


@functools.cache
def pipeline(policy: Path, cell: int, stages: int, replicas: int, dtype: str) -> MicroStepStream:
    """One pipeline per cell and kind for the whole session."""
    if replicas > 1:
        return replicas_of_threads(policy, stages, replicas, getattr(torch, dtype))
    return pipeline_of_threads(policy, stages, getattr(torch, dtype))


class Rig:
    """`core` and satellites made on demand; all read the same object store."""

    def __init__(
        self,
        folder: Path,
        policy: Path,
        *,
        dtype: str = "float32",
        stages: Sequence[tuple[int, int]] = (),
        combine: str = "reads",
    ) -> None:
        """`stages`: pipeline stages and replicas of each cell, as threads; one where it says nothing."""
        self.folder, self.policy, self.dtype, self.stages, self.combine = folder, policy, dtype, stages, combine
        self.objects = ObjectStore(f"file://{folder}/objects")
        self.core = self.actor(0)
        self.start = self.core.restore_base(m.RestoreBase(**BOOT))
        self.core.resume(m.Resume(**BOOT))

    def actor(self, cell: int) -> TrainingActor:
        return TrainingActor(
            ActorSettings(
                cell=cell,
                boot_epoch=1,
                model=self.policy,
                checkpoints=self.folder / "checkpoints",
                objects_url=f"file://{self.folder}/objects",
                dtype=self.dtype,
                combine=self.combine,
            ),
            endpoint(cell),
            self._stream(cell),
        )

    def _stream(self, cell: int) -> MicroStepStream | None:
        shape = self.stages[cell] if cell < len(self.stages) else (1, 1)
        return pipeline(self.policy, cell, *shape, self.dtype) if shape != (1, 1) else None

    def satellite(self, cell: int = 1) -> TrainingActor:
        """A satellite with the core's weights."""
        actor = self.actor(cell)
        actor.resume(m.Resume(**BOOT))
        self.hand_weights(actor)
        return actor

    def hand_weights(self, actor: TrainingActor) -> None:
        status = self.core.status()
        assert status.version is not None
        snapshot = self.core.expose_snapshot(m.ExposeSnapshot(version=status.version, **BOOT))
        actor.pull_snapshot(
            m.PullSnapshot(version=snapshot.version, checksum=snapshot.checksum, manifest=snapshot.manifest, **BOOT)
        )
        self.core.release_snapshot(m.ReleaseSnapshot(pin=snapshot.pin, **BOOT))

    def open(self, actor: TrainingActor, batch: str = "b") -> m.BatchReply:
        held = self.core.status()
        assert held.version is not None
        assert held.checksum is not None
        return actor.open_batch(m.OpenBatch(batch=batch, version=held.version, checksum=held.checksum, **BOOT))

    def run(
        self,
        actor: TrainingActor,
        executions: Sequence[Sampled],
        index: int = 0,
        attempt: int = 1,
        batch: str = "b",
        loss: LossSettings = CLIP["loss"],
    ) -> m.MicroStepReply:
        step = put(self.objects, pack(executions, batch=batch, index=index))
        request = m.RunMicroStep(micro_step=step, attempt=attempt, loss=loss, **BOOT)
        return actor.run_micro_step(request, actor.generation)

    def seal(self, actor: TrainingActor, batch: str = "b") -> m.SealReply:
        return actor.seal(m.BatchRequest(batch=batch, **BOOT))

    def combine_request(
        self, sealed: Sequence[m.SealReply], valid: int, batch: str = "b", **changes: object
    ) -> m.Combine:
        own = next((reply.accumulated for reply in sealed if reply.cell == 0), ())
        participants = tuple(
            m.Participant(
                cell=reply.cell, boot_epoch=reply.boot_epoch, accumulated=reply.accumulated, manifest=reply.manifest
            )
            for reply in sealed
            if reply.cell != 0 and reply.manifest is not None
        )
        return m.Combine(
            batch=batch, own=own, participants=participants, valid_executions=valid, **{**UPDATE, **BOOT, **changes}
        )

    def batch(self, actor: TrainingActor | None = None, batch: str = "b", seed: int = 0) -> m.Combine:
        """One small batch accumulated and sealed on the core; returns the combine request."""
        actor = actor or self.core
        self.open(actor, batch)
        self.run(actor, [sampled("p", 1.0, 4, 9, seed), sampled("q", -1.0, 5, 11, seed)], batch=batch)
        return self.combine_request([self.seal(actor, batch)], valid=2, batch=batch)


def gradient_of(actor: TrainingActor) -> dict[str, Tensor]:
    """The sum an actor holds, under Hugging Face names."""
    buffer = actor._gradients
    assert buffer is not None
    return to_hf(actor._arch, {name: view.clone() for name, view in buffer.views.items()})


def arch_and_weights(policy: Path) -> tuple[Architecture, dict[str, Tensor]]:
    return Architecture.from_folder(policy), load_weights(policy)
