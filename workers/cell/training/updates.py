"""The core's part in the end of a batch: one update per batch, durable before it counts.

Phases of one update: combined and stepped (in memory) -> checkpointed -> reported -> committed by the caller. A retry
picks up where the last attempt broke off and never steps twice; a discard goes back to the last committed state.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra.checkpoints import Checkpoint, CheckpointMeta, CheckpointStore
from infra.checkpoints.ledger import ledger_of
from infra.weights.checksum import weights_checksum
from workers.cell.training.checkpointing import save_checkpoint
from workers.cell.training.combine import CombinedGradient
from workers.cell.training.gradients import GradientBuffer
from workers.cell.training.optimizer import AdamSettings, CoreOptimizer
from workers.cell.training.weights_state import WeightsState
from workers.cell.training.whole import WholePolicy
from workflows.messages.training import Combine, CombineReply


@dataclass(frozen=True)
class _Stepped:
    """An update that is in the weights but not yet in a checkpoint."""

    request: Combine
    version: int
    checksum: str
    gradient: tuple[float, str]
    """Norm before clipping, and checksum of what was applied."""
    started: float


class Updates:
    """Applies updates on the core, which is `cell`. Not thread-safe: one caller, the compute thread."""

    def __init__(
        self,
        cell: int,
        model: WholePolicy,
        optimizer: CoreOptimizer,
        weights: WeightsState,
        store: CheckpointStore,
        companions_from: Path,
        code_version: str,
    ) -> None:
        self._cell = cell
        self._model, self._optimizer, self._weights, self._store = model, optimizer, weights, store
        self._companions_from, self._code_version = companions_from, code_version
        self._stepped: _Stepped | None = None
        self.reply: CombineReply | None = None

    @property
    def in_memory(self) -> bool:
        """Whether the weights are ahead of what was committed."""
        return self._stepped is not None or (self.reply is not None and self.reply.stepped)

    def apply(
        self, request: Combine, version: int, combine: Callable[[], CombinedGradient | None], buffer: GradientBuffer
    ) -> CombineReply:
        """Update from `version` with what `combine` returns (None: the batch has no target, so there is no step).

        `buffer` only lends its layout. Raises what `combine` and the disk raise; calling again goes on from there.
        """
        started = time.monotonic()
        if self._stepped is None:
            combined = combine()
            if combined is None:
                self.reply = self._without_step(request, version, started)
                return self.reply
            with self._weights.changing():
                settings = AdamSettings(request.learning_rate, request.betas, request.weight_decay)
                self._optimizer.step(buffer.layout.views(combined.flat), settings)
                checksum = weights_checksum(self._model.hf_weights())
                self._stepped = _Stepped(request, version + 1, checksum, (combined.norm, combined.checksum), started)
        self.reply = self._make_durable(self._stepped)
        self._stepped = None
        return self.reply

    def forget(self) -> None:
        """The update is committed, or its weights have been replaced."""
        self._stepped = self.reply = None

    def _without_step(self, request: Combine, version: int, started: float) -> CombineReply:
        held = self._weights.require(version)
        return CombineReply(
            batch=request.batch,
            stepped=False,
            version=held.version,
            checksum=held.checksum,
            micro_steps=micro_steps(request),
            grad_norm=None,
            checkpoint=None,
            seconds=time.monotonic() - started,
        )

    def _make_durable(self, stepped: _Stepped) -> CombineReply:
        meta = CheckpointMeta(
            version=stepped.version,
            checksum=stepped.checksum,
            optimizer_steps=self._optimizer.steps,
            code_version=self._code_version,
            counters=stepped.request.counters,
            ledger=ledger_of(stepped.request, self._cell, stepped.version - 1, *stepped.gradient),
        )
        checkpoint: Checkpoint = save_checkpoint(self._store, meta, self._model, self._optimizer, self._companions_from)
        self._weights.now_hold(stepped.version, stepped.checksum)
        return CombineReply(
            batch=stepped.request.batch,
            stepped=True,
            version=stepped.version,
            checksum=stepped.checksum,
            micro_steps=micro_steps(stepped.request),
            grad_norm=stepped.gradient[0],
            gradient_checksum=stepped.gradient[1],
            checkpoint=checkpoint.ref,
            seconds=time.monotonic() - stepped.started,
        )


def micro_steps(request: Combine) -> int:
    """Micro-steps that take part in an update."""
    return len(request.own) + sum(len(participant.accumulated) for participant in request.participants)
