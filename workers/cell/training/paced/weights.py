"""The weights of a paced trainer as numpy arrays: exposed, pulled, stepped and exported."""

from pathlib import Path

import numpy as np

from infra.checkpoints import Checkpoint, CheckpointMeta, CheckpointStore
from infra.transfer import TransferEndpoint
from infra.weights.architecture import Architecture
from infra.weights.folder import export_folder
from infra.weights.names import hf_shapes
from infra.weights.plain import Arrays, arrays_checksum, load_arrays, save_arrays
from workers.cell.training.exposure import BUFFER_NAME, Exposure
from workers.cell.training.lineage import Lineage, require_checksum
from workers.cell.training.weights_state import HeldWeights, WeightsState
from workflows.messages import training as m
from workflows.messages.errors import CheckpointUnusable, ChecksumMismatch


class PacedWeights(Lineage):
    """One flat fp32 array, [elements], in the order of the sorted Hugging Face names; thread-safe where read."""

    def __init__(self, base: Path, store: CheckpointStore, endpoint: TransferEndpoint, boot_epoch: int) -> None:
        super().__init__(WeightsState(), store)
        self.optimizer_steps = 0
        self._base, self._endpoint = base, endpoint
        self._shapes = hf_shapes(Architecture.from_folder(base))
        self._flat = np.zeros(sum(int(np.prod(shape)) for shape in self._shapes.values()), dtype=np.float32)
        self.snapshots = Exposure(
            endpoint, boot_epoch, self.elements, allocate=lambda: np.empty_like(self._flat), fill=self._copy_into
        )

    @property
    def elements(self) -> int:
        return self._flat.size

    # --- who reads them

    def expose(self, version: int) -> m.SnapshotReply:
        with self.state.reading(version) as held:
            return self.snapshots.expose(held.version, held.checksum)

    def export(self, request: m.ExportWeights) -> m.ExportReply:
        folder = Path(request.folder)
        with self.state.reading(request.version, request.checksum):
            export_folder(folder, self._named(self._flat), self._base, save_arrays)
        size = sum(path.stat().st_size for path in folder.iterdir())
        return m.ExportReply(folder=request.folder, version=request.version, checksum=request.checksum, bytes=size)

    # --- one update

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

    # --- where they come from

    def _take_over(self, request: m.PullSnapshot) -> None:
        flat = np.empty_like(self._flat)
        self._endpoint.read(request.manifest, {BUFFER_NAME: flat}, timeout_seconds=request.timeout_seconds)
        found = arrays_checksum(self._named(flat))
        if found != request.checksum:
            raise ChecksumMismatch(f"snapshot {request.version} has checksum {found}, promised another")
        with self.state.changing():
            self._flat = flat
            self.state.now_hold(request.version, request.checksum)

    def _load_base(self, request: m.RestoreBase) -> HeldWeights:
        arrays = load_arrays(self._base)
        checksum = arrays_checksum(arrays)
        require_checksum(checksum, request.checksum)
        with self.state.changing():
            self._flat, self.optimizer_steps = self._flattened(arrays), 0
            return self.state.now_hold(request.version, checksum)

    def _load(self, checkpoint: Checkpoint) -> None:
        arrays = load_arrays(checkpoint.folder)
        if arrays_checksum(arrays) != checkpoint.meta.checksum:
            raise CheckpointUnusable(f"{checkpoint.folder.name} loads with another checksum than it promises")
        with self.state.changing():
            self._flat, self.optimizer_steps = self._flattened(arrays), checkpoint.meta.optimizer_steps
            self.state.now_hold(checkpoint.meta.version, checkpoint.meta.checksum)

    def _copy_into(self, flat: np.ndarray) -> None:
        flat[:] = self._flat

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
