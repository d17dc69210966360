"""The weights of a paced trainer as numpy arrays: where they come from, who reads them, the way back.

As in `workers.cell.training.custody`: the version never goes backwards within one process, weights that did not verify
are never held, and the last committed state can always be loaded again.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from infra.checkpoints import Checkpoint, CheckpointMeta, CheckpointStore
from infra.transfer import PublishedBuffers, TransferEndpoint
from infra.weights.architecture import Architecture
from infra.weights.folder import export_folder
from infra.weights.names import hf_shapes
from infra.weights.plain import Arrays, arrays_checksum, load_arrays, save_arrays
from workers.cell.training.weights_state import HeldWeights, WeightsState
from workflows.messages import training as m
from workflows.messages.errors import CheckpointUnusable, ChecksumMismatch, Fenced, StillHeld, VersionMismatch

BUFFER_NAME = "weights"
PIN_SECONDS = 120.0


class PacedWeights:
    """One flat fp32 array, [elements], in the order of the sorted Hugging Face names; thread-safe where read."""

    def __init__(self, base: Path, store: CheckpointStore, endpoint: TransferEndpoint, boot_epoch: int) -> None:
        self.state = WeightsState()
        self.optimizer_steps = 0
        self._base, self._store, self._endpoint, self._boot_epoch = base, store, endpoint, boot_epoch
        self._shapes = hf_shapes(Architecture.from_folder(base))
        self._flat = np.zeros(sum(int(np.prod(shape)) for shape in self._shapes.values()), dtype=np.float32)
        self._origin: m.RestoreBase | m.CheckpointRef | None = None
        self._published: PublishedBuffers | None = None
        self._lock = threading.Lock()

    @property
    def elements(self) -> int:
        return self._flat.size

    # --- where they come from

    def restore_base(self, request: m.RestoreBase, before_loading: Callable[[], None]) -> m.RestoreReply:
        held = self.state.held
        if held is not None and isinstance(self._origin, m.RestoreBase) and held.version == request.version:
            _require_checksum(held.checksum, request.checksum)
        else:
            self._refuse_going_back(request.version)
            before_loading()
            held = self._load_base(request)
        return m.RestoreReply(version=held.version, checksum=held.checksum)

    def restore_checkpoint(self, request: m.RestoreCheckpoint, before_loading: Callable[[], None]) -> m.RestoreReply:
        if request.version is None:
            found = self._store.last_complete()
            _require_checksum(found.meta.checksum, request.checksum)
        else:
            found = self._store.find(request.version, request.checksum)
        meta = found.meta
        if self.state.held != HeldWeights(meta.version, meta.checksum):
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

    def pull(self, request: m.PullSnapshot, before_loading: Callable[[], None]) -> m.WeightsReply:
        """Read the core's, one-sided. Raises Fenced going back, TransferFailed, ChecksumMismatch."""
        if self.state.held != HeldWeights(request.version, request.checksum):
            self._refuse_going_back(request.version)
            before_loading()
            flat = np.empty_like(self._flat)
            self._endpoint.read(request.manifest, {BUFFER_NAME: flat}, timeout_seconds=request.timeout_seconds)
            found = arrays_checksum(self._named(flat))
            if found != request.checksum:
                raise ChecksumMismatch(f"snapshot {request.version} has checksum {found}, promised another")
            with self.state.changing():
                self._flat = flat
                self.state.now_hold(request.version, request.checksum)
        return m.WeightsReply(version=request.version, checksum=request.checksum)

    # --- who reads them

    def expose(self, version: int) -> m.SnapshotReply:
        with self.state.reading(version) as held, self._lock:
            if self._published is None:
                self._published = PublishedBuffers(self._endpoint, self._boot_epoch, pin_seconds=PIN_SECONDS)
            if self._published.version != version:
                self._published.publish(version, {BUFFER_NAME: self._flat})
            pin = self._published.pin()
        return m.SnapshotReply(
            version=version, checksum=held.checksum, manifest=pin.manifest, pin=pin.id, pin_seconds=PIN_SECONDS
        )

    def release_pin(self, pin: str) -> None:
        if self._published is not None:
            self._published.release(pin)

    @property
    def pins(self) -> int:
        return self._published.pins() if self._published is not None else 0

    @property
    def snapshot_bytes(self) -> int:
        return 2 * self._flat.nbytes if self._published is not None else 0

    def close_snapshots(self) -> None:
        """Raises StillHeld while somebody reads."""
        with self._lock:
            if self._published is None:
                return
            if self._published.pins():
                raise StillHeld(f"{self._published.pins()} readers still hold a snapshot")
            self._published.close()
            self._published = None

    def export(self, request: m.ExportWeights) -> m.ExportReply:
        folder = Path(request.folder)
        with self.state.reading(request.version, request.checksum):
            export_folder(folder, self._named(self._flat), self._base, save_arrays)
        size = sum(path.stat().st_size for path in folder.iterdir())
        return m.ExportReply(folder=request.folder, version=request.version, checksum=request.checksum, bytes=size)

    # --- one update, and the way back

    def step(self, direction: np.ndarray, learning_rate: float) -> str:
        """Go one step against `direction`, fp32 [elements]; the checksum of what the weights are then.

        Nothing is held until `save` has made it durable.
        """
        with self.state.changing():
            self._flat = self._flat - np.float32(learning_rate) * direction
            self.optimizer_steps += 1
            return arrays_checksum(self._named(self._flat))

    def save(self, meta: CheckpointMeta) -> m.CheckpointRef:
        named = self._named(self._flat)
        checkpoint = self._store.write(meta, lambda folder: save_arrays(folder, named, self._base))
        self.state.now_hold(meta.version, meta.checksum)
        return checkpoint.ref

    def commit(self, checkpoint: m.CheckpointRef) -> None:
        self._store.commit(checkpoint.name)
        self._origin = checkpoint

    def commit_restored(self, version: int | None) -> None:
        """The update to `version` was committed while this process was down: it restored that very checkpoint."""
        held = self.state.held
        if held is None or (version is not None and held.version < version):
            raise VersionMismatch(f"version {version} is committed elsewhere, this core holds {held}")
        if version in (None, held.version) and isinstance(self._origin, m.CheckpointRef):
            self._store.commit(self._origin.name)

    def roll_back(self) -> None:
        """Back to the last committed state."""
        if isinstance(self._origin, m.RestoreBase):
            self._load_base(self._origin)
        elif self._origin is not None:
            self._load(self._store.find(self._origin.version, self._origin.checksum))

    def _load_base(self, request: m.RestoreBase) -> HeldWeights:
        arrays = load_arrays(self._base)
        checksum = arrays_checksum(arrays)
        _require_checksum(checksum, request.checksum)
        with self.state.changing():
            self._flat, self.optimizer_steps, self._origin = self._flattened(arrays), 0, request
            return self.state.now_hold(request.version, checksum)

    def _load(self, checkpoint: Checkpoint) -> None:
        arrays = load_arrays(checkpoint.folder)
        if arrays_checksum(arrays) != checkpoint.meta.checksum:
            raise CheckpointUnusable(f"{checkpoint.folder.name} loads with another checksum than it promises")
        with self.state.changing():
            self._flat, self.optimizer_steps = self._flattened(arrays), checkpoint.meta.optimizer_steps
            self.state.now_hold(checkpoint.meta.version, checkpoint.meta.checksum)
        self._origin = checkpoint.ref

    def _flattened(self, arrays: Arrays) -> np.ndarray:
        return np.concatenate([arrays[name].ravel() for name in self._shapes])

    def _named(self, flat: np.ndarray) -> Arrays:
        """Views into `flat` by name."""
        named, offset = {}, 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            named[name] = flat[offset : offset + size].reshape(shape)
            offset += size
        return named

    def _refuse_going_back(self, version: int) -> None:
        held = self.state.held
        if held is not None and version < held.version:
            raise Fenced(f"version {held.version} is held; this process never goes back to {version}")


def _require_checksum(found: str, wanted: str | None) -> None:
    if wanted not in (None, found):
        raise VersionMismatch(f"checksum is {found}, wanted {wanted}")
