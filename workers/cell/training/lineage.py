"""The lineage of a process' weights: where they may come from, and the way back after a failed update.

Invariants: the version never goes backwards within one process; weights that did not verify are never held; the last
committed state can always be loaded again. What the weights are made of is the subclass' business.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from infra.checkpoints import Checkpoint, CheckpointStore
from workers.cell.training.weights_state import HeldWeights, WeightsState
from workflows.messages import training as m
from workflows.messages.errors import Fenced, VersionMismatch


class Lineage(ABC):
    """`before_loading` lets the owner drop what depends on the old weights."""

    def __init__(self, state: WeightsState, store: CheckpointStore) -> None:
        self.state, self._store = state, store
        self._origin: m.RestoreBase | m.CheckpointRef | None = None

    @abstractmethod
    def _load_base(self, request: m.RestoreBase) -> HeldWeights:
        """Load and hold the base model. Raises VersionMismatch for another checksum than the one asked for."""

    @abstractmethod
    def _load(self, checkpoint: Checkpoint) -> None:
        """Load and hold a checkpoint. Raises CheckpointUnusable if it is not what it promises."""

    @abstractmethod
    def _take_over(self, request: m.PullSnapshot) -> None:
        """Read the core's weights and hold them once they verify. Raises TransferFailed, ChecksumMismatch."""

    @abstractmethod
    def expose(self, version: int) -> m.SnapshotReply:
        """Leave to read the weights; training goes on. Raises VersionMismatch if another version is held."""

    @abstractmethod
    def export(self, request: m.ExportWeights) -> m.ExportReply:
        """Write a model folder for the local engine."""

    def restore_base(
        self, request: m.RestoreBase, before_loading: Callable[[], None], *, anew: bool = False
    ) -> m.RestoreReply:
        """Start of a run. Weights already at this version are left alone unless `anew`, at a later one it is refused
        (Fenced)."""
        held = self.state.held
        if (
            not anew
            and held is not None
            and isinstance(self._origin, m.RestoreBase)
            and held.version == request.version
        ):
            require_checksum(held.checksum, request.checksum)
        else:
            self._refuse_going_back(request.version)
            before_loading()
            held = self._from_base(request)
        return m.RestoreReply(version=held.version, checksum=held.checksum)

    def restore_checkpoint(
        self, request: m.RestoreCheckpoint, before_loading: Callable[[], None], *, anew: bool = False
    ) -> m.RestoreReply:
        """After a restart, or to take over: `anew`, although these very weights be held.

        Raises CheckpointUnusable if there is no such checkpoint, Fenced if it would set back.
        """
        if request.version is None:
            found = self._store.last_complete()
            require_checksum(found.meta.checksum, request.checksum)
        else:
            found = self._store.find(request.version, request.checksum)
        meta = found.meta
        if anew or self.state.held != HeldWeights(meta.version, meta.checksum):
            self._refuse_going_back(meta.version)
            before_loading()
            self._from_checkpoint(found)
        return m.RestoreReply(
            version=meta.version,
            checksum=meta.checksum,
            checkpoint=found.ref,
            counters=meta.counters,
            ledger=meta.ledger,
        )

    def pull(self, request: m.PullSnapshot, before_loading: Callable[[], None]) -> m.WeightsReply:
        """Take over the core's weights, once they verify. Raises Fenced going back."""
        if self.state.held != HeldWeights(request.version, request.checksum):
            self._refuse_going_back(request.version)
            before_loading()
            self._take_over(request)
        return m.WeightsReply(version=request.version, checksum=request.checksum)

    def commit(self, checkpoint: m.CheckpointRef) -> None:
        """From now on this is what a roll-back returns to; the store keeps it."""
        self._store.commit(checkpoint.name)
        self._origin = checkpoint

    def commit_restored(self, version: int | None) -> None:
        """The update to `version` was committed while this process was down: it restored that very checkpoint.

        Raises VersionMismatch if older weights are held. A base model needs no checkpoint.
        """
        held = self.state.held
        if held is None or (version is not None and held.version < version):
            raise VersionMismatch(f"version {version} is committed elsewhere, this core holds {held}")
        if version in (None, held.version) and isinstance(self._origin, m.CheckpointRef):
            self._store.commit(self._origin.name)

    def roll_back(self) -> None:
        """Back to the last committed state. Raises CheckpointUnusable if it is gone."""
        if isinstance(self._origin, m.RestoreBase):
            self._from_base(self._origin)
        elif self._origin is not None:
            self._from_checkpoint(self._store.find(self._origin.version, self._origin.checksum))

    def _from_base(self, request: m.RestoreBase) -> HeldWeights:
        held = self._load_base(request)
        self._origin = request
        return held

    def _from_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._load(checkpoint)
        self._origin = checkpoint.ref

    def _refuse_going_back(self, version: int) -> None:
        held = self.state.held
        if held is not None and version < held.version:
            raise Fenced(f"version {held.version} is held; this process never goes back to {version}")


def require_checksum(found: str, wanted: str | None) -> None:
    """Raises VersionMismatch."""
    if wanted not in (None, found):
        raise VersionMismatch(f"checksum is {found}, wanted {wanted}")
