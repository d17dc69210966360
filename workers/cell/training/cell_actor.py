"""What every trainer of a cell answers alike, whatever computes: fences, state, weights, and the books of its batch.

Threads: `status`, `expose_snapshot` and `release_snapshot` may be called at any time; everything else by one thread.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from infra.micro_steps import PackedMicroStep, decode
from infra.objects import ObjectStore
from infra.processes.identity import read_stat
from workers.cell.training.accumulator import Accumulator, Entry
from workers.cell.training.lineage import Lineage
from workers.cell.training.settings import ActorSettings
from workflows.messages import training as m
from workflows.messages.errors import Fenced, InvalidInput, StillHeld
from workflows.messages.group import MicroStep
from workflows.messages.transfer import BufferManifest


class CellActor(ABC):
    """One per cell; lives as long as its cell worker, across role changes."""

    def __init__(self, settings: ActorSettings) -> None:
        self.settings = settings
        self.lease_epoch = 0
        self._is_core = settings.cell == 0
        self._books = Accumulator()
        self._objects = ObjectStore(settings.objects_url)

    @property
    @abstractmethod
    def _lineage(self) -> Lineage:
        """Of the weights it trains."""

    @property
    @abstractmethod
    def _optimizer_steps(self) -> int | None:
        """None without an optimizer: in every cell but the core."""

    @abstractmethod
    def _drop_batch(self) -> None:
        """Let go of the open batch, its sum and an update of it that is not committed."""

    @abstractmethod
    def _resources(self) -> m.ResourceReply:
        """What is held now."""

    @abstractmethod
    def _begin_to_lead(self) -> None:
        """Take on what only the core has: an optimizer, empty yet."""

    @abstractmethod
    def _end_leading(self) -> None:
        """Let go of it."""

    # -- fencing and state ---------------------------------------------------------------------------------------------

    def fence(self, request: m.ActorRequest) -> None:
        """Raises Fenced for another boot of this actor, or a lease that has been superseded."""
        if request.boot_epoch != self.settings.boot_epoch:
            raise Fenced(f"boot epoch {request.boot_epoch}; this is boot {self.settings.boot_epoch}")
        if request.lease_epoch < self.lease_epoch:
            raise Fenced(f"lease {request.lease_epoch} is over; {self.lease_epoch} holds cell {self.settings.cell}")
        self.lease_epoch = max(self.lease_epoch, request.lease_epoch)

    @property
    def generation(self) -> int:
        """To be noted when a micro-step is queued, and given to `run_micro_step`."""
        return self._books.generation

    def status(self, *, busy: bool = False) -> m.ActorStatus:
        held = self._lineage.state.held
        return m.ActorStatus(
            cell=self.settings.cell,
            boot_epoch=self.settings.boot_epoch,
            lease_epoch=self.lease_epoch,
            pid=os.getpid(),
            version=held.version if held else None,
            checksum=held.checksum if held else None,
            batch=self._books.batch,
            phase=self._books.phase,
            accumulated=self._books.count,
            busy=busy,
            optimizer_steps=self._optimizer_steps,
            resources=self._resources(),
        )

    # -- weights -------------------------------------------------------------------------------------------------------

    def restore_base(self, request: m.RestoreBase) -> m.RestoreReply:
        with self._leading(anew=request.as_core and not self._is_core) as anew:
            return self._lineage.restore_base(request, self._drop_batch, anew=anew)

    def restore_checkpoint(self, request: m.RestoreCheckpoint) -> m.RestoreReply:
        with self._leading(anew=request.as_core and not self._is_core) as anew:
            return self._lineage.restore_checkpoint(request, self._drop_batch, anew=anew)

    def lay_down(self, request: m.LayDown) -> m.ResourceReply:
        """Be the core no more: later updates are refused. A batch that is not committed is dropped."""
        if self._is_core:
            self._drop_batch()
            self._lead(False)
        return self._resources()

    @contextmanager
    def _leading(self, *, anew: bool) -> Iterator[bool]:
        """Around what makes this the core, if it is `anew`: it is one only when that has worked."""
        if not anew:
            yield False
            return
        self._lead(True)
        try:
            yield True
        except BaseException:
            self._lead(False)
            raise

    def _lead(self, leads: bool) -> None:
        self._is_core = leads
        if leads:
            self._begin_to_lead()
        else:
            self._end_leading()

    def expose_snapshot(self, request: m.ExposeSnapshot) -> m.SnapshotReply:
        return self._lineage.expose(request.version)

    def pull_snapshot(self, request: m.PullSnapshot) -> m.WeightsReply:
        """Whoever reads weights from the core is not the core: an optimizer that it still has goes with older ones.

        Raises StillHeld while a batch of other weights is held.
        """
        before = self._lineage.state.held
        reply = self._lineage.pull(request, self._require_no_batch)
        if self._is_core and self._lineage.state.held != before:
            self._lead(False)
        return reply

    def export(self, request: m.ExportWeights) -> m.ExportReply:
        return self._lineage.export(request)

    # -- one batch -----------------------------------------------------------------------------------------------------

    def discard(self, request: m.BatchRequest) -> m.BatchReply:
        """Drop the gradient sum of `batch`, and its update if that is not committed. It may be opened again."""
        if request.batch == self._books.batch:
            self._drop_batch()
        return self._batch_reply(request.batch)

    def _known_reply(self, request: m.Combine, reply: m.CombineReply | None) -> m.CombineReply | None:
        """`reply`, the last one of `combine`, if the update of the open batch is applied: a retry never steps twice.

        Raises Fenced if it was made of another set.
        """
        if self._books.phase is not m.BatchPhase.APPLIED or reply is None:
            return None
        if reply.batch != request.batch or set(self._books.accumulated) != set(request.own):
            raise Fenced(f"{reply.batch} is applied already, from another set")
        return reply

    def _to_commit(self, request: m.Commit, reply: m.CombineReply | None) -> m.CombineReply:
        """The reply that `request` makes final. Raises Fenced if no such update is applied here."""
        is_applied = reply is not None and self._books.phase is m.BatchPhase.APPLIED
        if reply is None or not is_applied or request.version not in (None, reply.version):
            raise Fenced(f"{request.batch} is {self._books.phase}; version {request.version} was not applied here")
        return reply

    def _may_be_taken_back(self, batch: str) -> bool:
        """Whether `batch` may have an update here that nobody recorded."""
        ahead = self._books.phase in (m.BatchPhase.SEALED, m.BatchPhase.APPLIED)
        return batch == self._books.batch and self._is_core and ahead

    def _require_no_batch(self) -> None:
        if self._books.phase is not m.BatchPhase.CLOSED:
            raise StillHeld(f"{self._books.batch} is {self._books.phase}: commit or discard it first")

    def _seal_reply(self, batch: str, manifest: BufferManifest | None, meeting: str = "") -> m.SealReply:
        """What the books say of the sum; `manifest`: where to read it, if there is one."""
        return m.SealReply(
            batch=batch,
            cell=self.settings.cell,
            boot_epoch=self.settings.boot_epoch,
            version=self._books.version,
            accumulated=self._books.accumulated,
            metrics=self._books.metrics,
            manifest=manifest,
            meeting=meeting,
        )

    def _batch_reply(self, batch: str) -> m.BatchReply:
        is_held = batch == self._books.batch
        held = self._lineage.state.held
        return m.BatchReply(
            batch=batch,
            phase=self._books.phase if is_held else m.BatchPhase.CLOSED,
            version=self._books.version if is_held else (held.version if held else -1),
            accumulated=self._books.accumulated if is_held else (),
        )


def fetch(objects: ObjectStore, step: MicroStep) -> PackedMicroStep:
    """The payload of a micro-step. Raises InvalidInput if it is another micro-step's."""
    packed = decode(objects.get(step.payload))
    if (packed.header.batch, packed.header.index) != (step.batch, step.index):
        raise InvalidInput(f"holds micro-step {packed.header.index} of {packed.header.batch}", field="payload")
    return packed


def claim(
    settings: ActorSettings, books: Accumulator, checksum: str, request: m.RunMicroStep, entry: Entry, *, repeated: bool
) -> m.MicroStepReply:
    """What the batch records of a micro-step that is in the sum. `checksum`: of the weights it was computed with."""
    return m.MicroStepReply(
        batch=request.micro_step.batch,
        index=request.micro_step.index,
        attempt=entry.attempt,
        cell=settings.cell,
        boot_epoch=settings.boot_epoch,
        version=books.version,
        checksum=checksum,
        repeated=repeated,
        lane=entry.lane,
        order=entry.order,
        seconds=entry.seconds,
        metrics=entry.metrics,
    )


def resources(*, gradient_bytes: int, snapshot_bytes: int, pins: int) -> m.ResourceReply:
    """Those, and the memory of this process."""
    stat = read_stat(os.getpid())
    return m.ResourceReply(
        gradient_bytes=gradient_bytes,
        snapshot_bytes=snapshot_bytes,
        pins=pins,
        resident_bytes=stat.resident_pages * os.sysconf("SC_PAGE_SIZE") if stat else 0,
    )
