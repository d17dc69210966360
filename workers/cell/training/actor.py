"""The training actor of one cell: what each request of its control protocol does.

Invariants: gradients of a batch are all of one weight version; a micro-step is in the sum at most once; weights that
did not verify are never used; only the core has an optimizer and writes checkpoints. Nothing here knows HTTP.

Threads: `status`, `expose_snapshot` and `release_snapshot` may be called at any time; everything else by one thread.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from infra.checkpoints import CheckpointStore
from infra.logprob_gaps import histogram, percentile
from infra.micro_steps import decode
from infra.transfer import TransferEndpoint
from infra.weights.architecture import Architecture
from workers.cell.training.cell_actor import CellActor, resources
from workers.cell.training.combine import CombinedGradient, normalise_and_clip, sum_in_order
from workers.cell.training.compute import Answer
from workers.cell.training.custody import WeightsCustody
from workers.cell.training.flow import MicroStepFlow
from workers.cell.training.gradients import GradientBuffer, read_gradients
from workers.cell.training.model import build_model
from workers.cell.training.optimizer import CoreOptimizer
from workers.cell.training.participants import check_participants
from workers.cell.training.prefix_groups import PrefixGroups
from workers.cell.training.reference import ReferencePolicies
from workers.cell.training.settings import ActorSettings
from workers.cell.training.snapshots import Snapshots
from workers.cell.training.stream import MicroStepStream, SingleStageStream, Targets
from workers.cell.training.updates import Updates, micro_steps
from workers.cell.training.weights_state import WeightsState
from workflows.messages import training as m
from workflows.messages.errors import InvalidInput, StillHeld, VersionMismatch


class TrainingActor(CellActor):
    """The real one.

    `stream`: what computes; one stage in this process unless given.
    """

    def __init__(
        self, settings: ActorSettings, endpoint: TransferEndpoint | None = None, stream: MicroStepStream | None = None
    ) -> None:
        super().__init__(settings)
        self._arch = Architecture.from_folder(settings.model)
        self._stream = stream or SingleStageStream(build_model(self._arch, dtype=getattr(torch, settings.dtype)))
        self._model = self._stream.whole
        self._endpoint = endpoint or TransferEndpoint()
        self._references = ReferencePolicies(settings.model)
        self._stream.use_reference(self._references)
        self._weights = WeightsState()
        self._flow = MicroStepFlow(settings, self._books, self._objects, self._weights, self._stream, self._buffer)
        self._snapshots = Snapshots(self._model, self._endpoint, settings.boot_epoch)
        self._groups = PrefixGroups(settings.cell, self._endpoint.host)
        self._gradients: GradientBuffer | None = None
        self._optimizer: CoreOptimizer | None = None
        self._updates: Updates | None = None
        self._store = CheckpointStore(settings.checkpoints, settings.keep_checkpoints)
        self._custody = WeightsCustody(
            self._model, self._weights, self._store, self._snapshots, self._endpoint, settings.model
        )
        if self._is_core:
            self._begin_to_lead()

    @property
    def _lineage(self) -> WeightsCustody:
        return self._custody

    @property
    def _optimizer_steps(self) -> int | None:
        optimizer = self._optimizer
        return optimizer.steps if optimizer else None

    def _begin_to_lead(self) -> None:
        self._optimizer = self._custody.optimizer = CoreOptimizer(self._model)
        told = self.settings
        self._updates = Updates(
            told.cell, self._model, self._optimizer, self._weights, self._store, told.model, told.code_version
        )

    def _end_leading(self) -> None:
        self._optimizer = self._custody.optimizer = self._updates = None

    # -- resources -----------------------------------------------------------------------------------------------------

    def release_snapshot(self, request: m.ReleaseSnapshot) -> m.ResourceReply:
        self._snapshots.release(request.pin)
        return self._resources()

    def resume(self, request: m.Resume) -> m.ResourceReply:
        if self._gradients is None:
            self._gradients = self._stream.gradient_buffer(self._endpoint)
        return self._resources()

    def release(self, request: m.Release) -> m.ResourceReply:
        """Raises StillHeld while a batch is not committed or discarded, or a snapshot is being read."""
        self._require_no_batch()
        self._snapshots.close()
        self._references.close()
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        return self._resources()

    # -- one batch -----------------------------------------------------------------------------------------------------

    def open_batch(self, request: m.OpenBatch) -> m.BatchReply:
        """Raises VersionMismatch for other weights, StillHeld before `resume`, Fenced for a batch that is over."""
        held, buffer = self._weights.require(request.version, request.checksum), self._buffer()
        self._stream.hold(held)
        if self._books.open(request.batch, request.version):
            buffer.zero()
            buffer.attach()
        return self._batch_reply(request.batch)

    def run_micro_step(
        self, request: m.RunMicroStep, generation: int, abandoned: Callable[[], bool] = lambda: False
    ) -> m.MicroStepReply:
        """Add a micro-step to the sum, from beginning to end. `abandoned` says, before the work starts, that nobody
        waits for it any more."""
        return self._flow.run(request, generation, abandoned)

    @property
    def in_flight(self) -> int:
        """Micro-steps fed and not yet answered: with this, `feed` and `advance` it is a `compute.Flow`."""
        return self._flow.in_flight

    def feed(self, request: m.RunMicroStep, generation: int, abandoned: Callable[[], bool], answer: Answer) -> None:
        self._flow.feed(request, generation, abandoned, answer)

    def advance(self) -> None:
        self._flow.advance()

    def seal(self, request: m.BatchRequest) -> m.SealReply:
        self._flow.settle()
        self._books.seal(request.batch)
        manifest = None
        if self._books.count:
            buffer = self._buffer()
            buffer.complete()
            manifest = buffer.manifest(self._books.version, self.settings.boot_epoch)
        meets = self._updates is not None and self.settings.combine == "groups"
        return self._seal_reply(request.batch, manifest, self._groups.meeting if meets else "")

    def contribute(self, request: m.Contribute) -> m.BatchReply:
        """Take part in the core's `combine` by a prefix group; raises TransferFailed if the group breaks."""
        self._books.require_sealed(request.batch)
        self._groups.contribute(request.group, self._buffer().flat)
        return self._batch_reply(request.batch)

    def combine(self, request: m.Combine) -> m.CombineReply:
        """Core only; see `Updates`. Asked again for the batch just applied, it answers as before."""
        if self._updates is None:
            raise InvalidInput("only the core combines gradients", field="cell")
        known = self._known_reply(request, self._updates.reply)
        if known is not None:
            return known
        self._books.require_sealed(request.batch)
        version = self._books.version
        check_participants(self._books.accumulated, request.own, request.participants, version)
        reply = self._updates.apply(request, version, lambda: self._combined(request), self._buffer())
        self._books.mark_applied(request.batch)
        return reply

    def take_back(self, request: m.BatchRequest) -> m.BatchReply:
        """Undo an update that nobody recorded: weights as before, the batch sealed with its gradient as it was."""
        if self._updates is not None and self._may_be_taken_back(request.batch):
            if self._updates.in_memory:
                self._custody.roll_back()
            self._updates.forget()
            self._books.mark_sealed_again(request.batch)
            self._buffer().attach()
        return self._batch_reply(request.batch)

    def commit(self, request: m.Commit) -> m.BatchReply:
        """The batch recorded its update: let the gradients go, keep the checkpoint. Repeating changes nothing."""
        if request.batch == self._books.batch:
            if self._updates is not None:
                self._commit_update(request, self._updates)
            self._books.end()
            if self._gradients is not None:
                self._gradients.zero()
                self._gradients.attach()
        elif self._updates is not None and not self._books.has_ended(request.batch):
            self._custody.commit_restored(request.version)
        return self._batch_reply(request.batch)

    def replay_logprobs(self, request: m.ReplayLogprobs) -> m.ReplayReply:
        """How far behaviour log-probs are from this model's, over the targets that were sampled at its version."""
        held = self._weights.held
        if held is None:
            raise VersionMismatch("no verified weights are held")
        packed = decode(self._objects.get(request.payload))
        self._stream.hold(held)
        with torch.no_grad():
            targets = Targets.of(self._stream.look(packed), packed)
            same = targets.versions == held.version
            gaps = (targets.logprobs - targets.behaviour).abs()[same].cpu().numpy()
        counts = histogram(gaps) if len(gaps) else {}
        return m.ReplayReply(
            version=held.version,
            tokens=len(gaps),
            mean_gap=float(gaps.mean(dtype="float64")) if len(gaps) else 0.0,
            p999_gap=percentile(counts, 0.999),
            max_gap=float(gaps.max()) if len(gaps) else 0.0,
            gaps=counts,
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _combined(self, request: m.Combine) -> CombinedGradient | None:
        if not micro_steps(request) or not request.valid_executions:
            return None
        buffer, total = self._buffer(), None
        if request.group is not None and len(request.group.members) > 1:
            total = self._groups.total(request.group, buffer.flat, request.participants)
        if total is None:
            total = sum_in_order(buffer.flat, self._read(request, buffer))
        if not total.any():
            return None  # every target was masked: moments and step count must not move
        return normalise_and_clip(total, request.valid_executions, request.max_grad_norm)

    def _read(self, request: m.Combine, buffer: GradientBuffer) -> Iterator[Tensor]:
        for participant in sorted(request.participants, key=lambda participant: participant.cell):
            yield read_gradients(
                self._endpoint, participant.manifest, buffer.layout, request.timeout_seconds, buffer.flat.dtype
            )

    def _commit_update(self, request: m.Commit, updates: Updates) -> None:
        reply = self._to_commit(request, updates.reply)
        if reply.checkpoint is not None:
            self._custody.commit(reply.checkpoint)
        updates.forget()

    def _drop_batch(self) -> None:
        if self._updates is not None and self._updates.in_memory:
            self._custody.roll_back()
        if self._updates is not None:
            self._updates.forget()
        self._books.drop()
        if self._gradients is not None:
            self._gradients.zero()
            self._gradients.attach()

    def _buffer(self) -> GradientBuffer:
        if self._gradients is None:
            raise StillHeld("training resources are released; resume first")
        return self._gradients

    def _resources(self) -> m.ResourceReply:
        gradients = self._gradients
        return resources(
            gradient_bytes=gradients.bytes if gradients else 0,
            snapshot_bytes=self._snapshots.bytes,
            pins=self._snapshots.pins,
        )
