"""Custody of the weights: where they may come from, who may have them, and the way back after a failed update.

Invariants: the version never goes backwards within one process; weights that did not verify are never held; the last
committed state can always be loaded again.
"""

from collections.abc import Callable
from pathlib import Path

from infra.checkpoints import Checkpoint, CheckpointStore
from infra.transfer import TransferEndpoint
from infra.weights.checksum import weights_checksum
from infra.weights.folder import export_folder, load_weights
from workers.cell.training import random_state
from workers.cell.training.checkpointing import load_checkpoint
from workers.cell.training.optimizer import CoreOptimizer
from workers.cell.training.snapshots import Snapshots, pull_weights
from workers.cell.training.weights_state import HeldWeights, WeightsState
from workers.cell.training.whole import WholePolicy
from workflows.messages import training as m
from workflows.messages.errors import Fenced, VersionMismatch


class WeightsCustody:
    """Loads, exposes, pulls and exports. `before_loading` lets the owner drop what depends on the old weights."""

    def __init__(
        self,
        model: WholePolicy,
        optimizer: CoreOptimizer | None,
        state: WeightsState,
        store: CheckpointStore,
        snapshots: Snapshots,
        endpoint: TransferEndpoint,
        base: Path,
    ) -> None:
        self._model, self._optimizer, self._state, self._store = model, optimizer, state, store
        self._snapshots, self._endpoint, self._base = snapshots, endpoint, base
        self._origin: m.RestoreBase | m.CheckpointRef | None = None

    def restore_base(self, request: m.RestoreBase, before_loading: Callable[[], None]) -> m.RestoreReply:
        """Start of a run. Weights already at this version are left alone, at a later one it is refused (Fenced)."""
        held = self._state.held
        if held is not None and isinstance(self._origin, m.RestoreBase) and held.version == request.version:
            _require_checksum(held.checksum, request.checksum)
            return m.RestoreReply(version=held.version, checksum=held.checksum)
        self._refuse_going_back(request.version)
        before_loading()
        held = self._load_base(request)
        return m.RestoreReply(version=held.version, checksum=held.checksum)

    def restore_checkpoint(self, request: m.RestoreCheckpoint, before_loading: Callable[[], None]) -> m.RestoreReply:
        """After a restart. Raises CheckpointUnusable if there is no such checkpoint, Fenced if it would set back."""
        if request.version is None:
            found = self._store.last_complete()
            _require_checksum(found.meta.checksum, request.checksum)
        else:
            found = self._store.find(request.version, request.checksum)
        held, meta = self._state.held, found.meta
        if held != HeldWeights(meta.version, meta.checksum):
            self._refuse_going_back(meta.version)
            before_loading()
            self._load(found)
        return m.RestoreReply(
            version=meta.version,
            checksum=meta.checksum,
            checkpoint=found.ref,
            counters=meta.counters,
            ledger=meta.ledger,
        )

    def expose(self, version: int) -> m.SnapshotReply:
        """Leave to read the weights; training goes on. Raises VersionMismatch if another version is held."""
        with self._state.reading(version) as held:
            return self._snapshots.expose(held.version, held.checksum)

    def pull(self, request: m.PullSnapshot, before_loading: Callable[[], None]) -> m.WeightsReply:
        """Take over the core's weights, once they verify. Raises Fenced going back."""
        if self._state.held != HeldWeights(request.version, request.checksum):
            self._refuse_going_back(request.version)
            before_loading()
            arch, manifest = self._model.arch, request.manifest
            tensors = pull_weights(self._endpoint, manifest, arch, request.checksum, request.timeout_seconds)
            with self._state.changing():
                self._model.load_hf(tensors)
                self._state.now_hold(request.version, request.checksum)
        return m.WeightsReply(version=request.version, checksum=request.checksum)

    def export(self, request: m.ExportWeights) -> m.ExportReply:
        """Write a model folder for the local engine."""
        folder = Path(request.folder)
        with self._state.reading(request.version, request.checksum):
            export_folder(folder, self._model.hf_weights(), self._base)
        size = sum(path.stat().st_size for path in folder.iterdir())
        return m.ExportReply(folder=request.folder, version=request.version, checksum=request.checksum, bytes=size)

    def commit(self, checkpoint: m.CheckpointRef) -> None:
        """From now on this is what a roll-back returns to; the store keeps it."""
        self._store.commit(checkpoint.name)
        self._origin = checkpoint

    def commit_restored(self, version: int | None) -> None:
        """The update to `version` was committed while this process was down: it restored that very checkpoint.

        Raises VersionMismatch if older weights are held. A base model needs no checkpoint.
        """
        held = self._state.held
        if held is None or (version is not None and held.version < version):
            raise VersionMismatch(f"version {version} is committed elsewhere, this core holds {held}")
        if version in (None, held.version) and isinstance(self._origin, m.CheckpointRef):
            self._store.commit(self._origin.name)

    def roll_back(self) -> None:
        """Back to the last committed state. Raises CheckpointUnusable if it is gone."""
        if isinstance(self._origin, m.RestoreBase):
            self._load_base(self._origin)
        elif self._origin is not None:
            self._load(self._store.find(self._origin.version, self._origin.checksum))

    def _load(self, checkpoint: Checkpoint) -> None:
        with self._state.changing():
            checksum = load_checkpoint(checkpoint, self._model, self._optimizer)
            self._state.now_hold(checkpoint.meta.version, checksum)
        self._origin = checkpoint.ref

    def _load_base(self, request: m.RestoreBase) -> HeldWeights:
        tensors = load_weights(self._base)
        checksum = weights_checksum(tensors)
        _require_checksum(checksum, request.checksum)
        with self._state.changing():
            self._model.load_hf(tensors)
            if self._optimizer is not None:
                self._optimizer.reset()
                random_state.seed(request.version)
            self._origin = request
            return self._state.now_hold(request.version, checksum)

    def _refuse_going_back(self, version: int) -> None:
        held = self._state.held
        if held is not None and version < held.version:
            raise Fenced(f"version {held.version} is held; this process never goes back to {version}")


def _require_checksum(found: str, wanted: str | None) -> None:
    if wanted not in (None, found):
        raise VersionMismatch(f"checksum is {found}, wanted {wanted}")
