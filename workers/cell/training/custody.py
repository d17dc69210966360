"""Custody of the weights of a Megatron policy: loaded, exposed, pulled, exported."""

from pathlib import Path

from infra.checkpoints import Checkpoint, CheckpointStore
from infra.transfer import TransferEndpoint
from infra.weights.checksum import weights_checksum
from infra.weights.folder import export_folder, load_weights
from workers.cell.training import random_state
from workers.cell.training.checkpointing import load_checkpoint
from workers.cell.training.lineage import Lineage, require_checksum
from workers.cell.training.optimizer import CoreOptimizer
from workers.cell.training.snapshots import Snapshots, pull_weights
from workers.cell.training.weights_state import HeldWeights, WeightsState
from workers.cell.training.whole import WholePolicy
from workflows.messages import training as m


class WeightsCustody(Lineage):
    """Of the whole model, whatever layout computes with it."""

    def __init__(
        self,
        model: WholePolicy,
        state: WeightsState,
        store: CheckpointStore,
        snapshots: Snapshots,
        endpoint: TransferEndpoint,
        base: Path,
    ) -> None:
        super().__init__(state, store)
        self.optimizer: CoreOptimizer | None = None  # the core's, as long as this is the core
        self._model = model
        self._snapshots, self._endpoint, self._base = snapshots, endpoint, base

    def expose(self, version: int) -> m.SnapshotReply:
        with self.state.reading(version) as held:
            return self._snapshots.expose(held.version, held.checksum)

    def export(self, request: m.ExportWeights) -> m.ExportReply:
        folder = Path(request.folder)
        with self.state.reading(request.version, request.checksum):
            export_folder(folder, self._model.hf_weights(), self._base)
        size = sum(path.stat().st_size for path in folder.iterdir())
        return m.ExportReply(folder=request.folder, version=request.version, checksum=request.checksum, bytes=size)

    def _take_over(self, request: m.PullSnapshot) -> None:
        arch, manifest = self._model.arch, request.manifest
        tensors = pull_weights(self._endpoint, manifest, arch, request.checksum, request.timeout_seconds)
        with self.state.changing():
            self._model.load_hf(tensors)
            self.state.now_hold(request.version, request.checksum)

    def _load(self, checkpoint: Checkpoint) -> None:
        with self.state.changing():
            checksum = load_checkpoint(checkpoint, self._model, self.optimizer)
            self.state.now_hold(checkpoint.meta.version, checksum)

    def _load_base(self, request: m.RestoreBase) -> HeldWeights:
        tensors = load_weights(self._base)
        checksum = weights_checksum(tensors)
        require_checksum(checksum, request.checksum)
        with self.state.changing():
            self._model.load_hf(tensors)
            if self.optimizer is not None:
                self.optimizer.reset()
                random_state.seed(request.version)
            return self.state.now_hold(request.version, checksum)
