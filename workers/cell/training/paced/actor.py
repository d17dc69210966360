"""The paced training actor: the actor's protocol, its books and its fences, and time by tokens instead of work.

What is real: payloads are fetched and checked, membership and attempts are kept, sums are read one-sided and combined
once, updates become durable checkpoints, weights are exposed, pulled and exported with their checksums. What is not:
the gradient is drawn from the payloads, so nothing is learnt.

Threads as for the real one: `status`, `expose_snapshot` and `release_snapshot` at any time; everything else by one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from infra.checkpoints import CheckpointMeta, CheckpointStore
from infra.checkpoints.ledger import ledger_of
from infra.micro_steps import PackedMicroStep
from infra.settings.fleet import PacedTrainer
from infra.transfer import TransferEndpoint
from workers.cell.training.accumulator import Entry
from workers.cell.training.cell_actor import CellActor, claim, fetch, resources
from workers.cell.training.compute import OneByOne
from workers.cell.training.paced.gradient import Combined, GradientSum, combined
from workers.cell.training.paced.weights import PacedWeights
from workers.cell.training.participants import check_participants
from workers.cell.training.settings import ActorSettings
from workflows.messages import training as m
from workflows.messages.errors import Fenced, InvalidInput, InvalidSpec, StillHeld, VersionMismatch


@dataclass(frozen=True)
class _Stepped:
    """An update that is in the weights but not yet in a checkpoint."""

    checksum: str
    norm: float
    gradient_checksum: str


class PacedActor(OneByOne, CellActor):
    """One per cell, in place of the real one."""

    def __init__(self, settings: ActorSettings, pace: PacedTrainer, endpoint: TransferEndpoint | None = None) -> None:
        super().__init__(settings)
        self._pace = pace
        self._endpoint = endpoint or TransferEndpoint()
        store = CheckpointStore(settings.checkpoints, settings.keep_checkpoints)
        self._weights = PacedWeights(settings.model, store, self._endpoint, settings.boot_epoch)
        self._sum: GradientSum | None = None
        self._stepped: _Stepped | None = None
        self._reply: m.CombineReply | None = None

    @property
    def _lineage(self) -> PacedWeights:
        return self._weights

    @property
    def _optimizer_steps(self) -> int | None:
        return self._weights.optimizer_steps if self._is_core else None

    def _begin_to_lead(self) -> None:
        """Its optimizer is a count of updates, kept with the weights."""

    def _end_leading(self) -> None:
        """As above: nothing else to let go of."""

    # -- resources -----------------------------------------------------------------------------------------------------

    def release_snapshot(self, request: m.ReleaseSnapshot) -> m.ResourceReply:
        self._weights.snapshots.release(request.pin)
        return self._resources()

    def resume(self, request: m.Resume) -> m.ResourceReply:
        if self._sum is None:
            self._sum = GradientSum(self._weights.elements, self._endpoint)
        return self._resources()

    def release(self, request: m.Release) -> m.ResourceReply:
        """Raises StillHeld while a batch is not committed or discarded, or a snapshot is being read."""
        self._require_no_batch()
        self._weights.snapshots.close()
        if self._sum is not None:
            self._sum.close()
            self._sum = None
        return self._resources()

    # -- one batch -----------------------------------------------------------------------------------------------------

    def open_batch(self, request: m.OpenBatch) -> m.BatchReply:
        self._weights.state.require(request.version, request.checksum)
        buffer = self._buffer()
        if self._books.open(request.batch, request.version):
            buffer.zero()
        return self._batch_reply(request.batch)

    def run_micro_step(
        self, request: m.RunMicroStep, generation: int, abandoned: Callable[[], bool] = lambda: False
    ) -> m.MicroStepReply:
        """Take the time of a micro-step, then add it to the sum."""
        step, payload = request.micro_step, request.micro_step.payload
        known = self._books.admit(step.batch, step.index, request.attempt, payload.sha256, generation)
        if known is not None:
            return self._claim(request, known, repeated=True)
        if abandoned():
            raise Fenced(f"attempt {request.attempt} of micro-step {step.index} was given up by its caller")
        self._weights.state.require(self._books.version)
        started = time.monotonic()
        packed = fetch(self._objects, step)
        if packed.weights.any():
            self._buffer().add(payload.sha256)
        _rest(started + seconds_of(packed, self._pace))
        entry = Entry(request.attempt, payload.sha256, metrics_of(packed), time.monotonic() - started)
        self._books.add(step.index, entry)
        return self._claim(request, entry, repeated=False)

    def seal(self, request: m.BatchRequest) -> m.SealReply:
        self._books.seal(request.batch)
        manifest = None
        if self._books.count:
            manifest = self._buffer().manifest(self._books.version, self.settings.boot_epoch)
        return self._seal_reply(request.batch, manifest)

    def contribute(self, request: m.Contribute) -> m.BatchReply:
        """Raises InvalidSpec: sums are read one-sided here."""
        raise InvalidSpec("a paced trainer takes part in no groups; its sum is read", field="combine")

    def combine(self, request: m.Combine) -> m.CombineReply:
        """Core only. Asked again for the batch just applied, it answers as before; a retry never steps twice."""
        if not self._is_core:
            raise InvalidInput("only the core combines gradients", field="cell")
        known = self._known_reply(request, self._reply)
        if known is not None:
            return known
        self._books.require_sealed(request.batch)
        check_participants(self._books.accumulated, request.own, request.participants, self._books.version)
        self._reply = self._applied(request, self._books.version)
        self._books.mark_applied(request.batch)
        return self._reply

    def take_back(self, request: m.BatchRequest) -> m.BatchReply:
        if self._may_be_taken_back(request.batch):
            self._undo()
            self._books.mark_sealed_again(request.batch)
        return self._batch_reply(request.batch)

    def commit(self, request: m.Commit) -> m.BatchReply:
        if request.batch == self._books.batch:
            if self._is_core:
                self._commit_update(request)
            self._books.end()
            if self._sum is not None:
                self._sum.zero()
        elif self._is_core and not self._books.has_ended(request.batch):
            self._weights.commit_restored(request.version)
        return self._batch_reply(request.batch)

    def replay_logprobs(self, request: m.ReplayLogprobs) -> m.ReplayReply:
        """It has no model to compare with: nothing is compared, and the answer says so."""
        held = self._weights.state.held
        if held is None:
            raise VersionMismatch("no verified weights are held")
        return m.ReplayReply(version=held.version, tokens=0, mean_gap=0.0, p999_gap=0.0, max_gap=0.0, gaps={})

    # -- inside --------------------------------------------------------------------------------------------------------

    def _applied(self, request: m.Combine, version: int) -> m.CombineReply:
        started = time.monotonic()
        count = len(request.own) + sum(len(other.accumulated) for other in request.participants)
        if self._stepped is None:
            gradient = self._combined(request) if count and request.valid_executions else None
            if gradient is None:
                held = self._weights.state.require(version)
                return _reply(request, count, started, version=version, checksum=held.checksum)
            checksum = self._weights.step(gradient.flat, request.learning_rate)
            self._stepped = _Stepped(checksum, gradient.norm, gradient.checksum)
        done = self._stepped
        meta = CheckpointMeta(
            version=version + 1,
            checksum=done.checksum,
            optimizer_steps=self._weights.optimizer_steps,
            code_version=self.settings.code_version,
            trainer="paced",
            counters=request.counters,
            ledger=ledger_of(request, self.settings.cell, version, done.norm, done.gradient_checksum),
        )
        checkpoint = self._weights.save(meta)
        self._stepped = None
        _rest(started + self._pace.update_seconds)
        return _reply(
            request, count, started, version=version + 1, checksum=done.checksum, done=done, checkpoint=checkpoint
        )

    def _combined(self, request: m.Combine) -> Combined | None:
        return combined(
            self._buffer().flat,
            request.participants,
            self._endpoint,
            valid_executions=request.valid_executions,
            max_norm=request.max_grad_norm,
            timeout_seconds=request.timeout_seconds,
        )

    def _commit_update(self, request: m.Commit) -> None:
        reply = self._to_commit(request, self._reply)
        if reply.checkpoint is not None:
            self._weights.commit(reply.checkpoint)
        self._reply = None

    def _undo(self) -> None:
        """Back to the committed weights, if they are ahead of them."""
        if self._stepped is not None or (self._reply is not None and self._reply.stepped):
            self._weights.roll_back()
        self._stepped = self._reply = None

    def _drop_batch(self) -> None:
        self._undo()
        self._books.drop()
        if self._sum is not None:
            self._sum.zero()

    def _buffer(self) -> GradientSum:
        if self._sum is None:
            raise StillHeld("training resources are released; resume first")
        return self._sum

    def _claim(self, request: m.RunMicroStep, entry: Entry, *, repeated: bool) -> m.MicroStepReply:
        checksum = self._weights.state.checksum
        return claim(self.settings, self._books, checksum, request, entry, repeated=repeated)

    def _resources(self) -> m.ResourceReply:
        return resources(
            gradient_bytes=self._sum.bytes if self._sum is not None else 0,
            snapshot_bytes=self._weights.snapshots.bytes,
            pins=self._weights.snapshots.pins,
        )


def seconds_of(packed: PackedMicroStep, pace: PacedTrainer) -> float:
    """What a micro-step takes: its places, context and targets alike, at the set rate."""
    return len(packed.ids) / pace.tokens_per_second


def metrics_of(packed: PackedMicroStep) -> m.TokenMetrics:
    """Sums over the targets with a ratio of 1 everywhere: nothing is computed, so nothing can differ."""
    targets = packed.target_tokens
    versions, counts = np.unique(packed.versions[packed.targets], return_counts=True)
    return m.TokenMetrics(
        tokens=targets,
        loss_sum=-float(packed.weights.sum()),
        ratio_sum=float(targets),
        ratio_max=1.0 if targets else 0.0,
        versions=dict(zip(versions.tolist(), counts.tolist(), strict=True)),
        computed_tokens=packed.tokens,
        path_tokens=packed.path_tokens,
    )


def _rest(until: float) -> None:
    """Sleep until that moment of the monotonic clock."""
    time.sleep(max(0.0, until - time.monotonic()))


def _reply(
    request: m.Combine,
    micro_steps: int,
    started: float,
    *,
    version: int,
    checksum: str,
    done: _Stepped | None = None,
    checkpoint: m.CheckpointRef | None = None,
) -> m.CombineReply:
    return m.CombineReply(
        batch=request.batch,
        stepped=done is not None,
        version=version,
        checksum=checksum,
        micro_steps=micro_steps,
        grad_norm=done.norm if done else None,
        gradient_checksum=done.gradient_checksum if done else "",
        checkpoint=checkpoint,
        seconds=time.monotonic() - started,
    )
