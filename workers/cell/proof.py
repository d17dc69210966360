"""How an engine shows which weights it holds: its own checksums against those of the folder it was told to load."""

import hashlib
from pathlib import Path

from infra.engine.client import EngineChecksum
from infra.engine.fingerprint import engine_checksums, verify_weights
from infra.weights.architecture import Architecture
from infra.weights.checksum import weights_checksum
from infra.weights.folder import WEIGHTS_FILE, load_weights
from infra.weights.plain import arrays_checksum, load_arrays
from workflows.messages.errors import VersionMismatch
from workflows.messages.scheduling import Weights


class SglangProof:
    """Per-parameter checksums as SGLang computes them on CPU. Remembers what the last folder must give."""

    def __init__(self) -> None:
        self._known: tuple[Weights, EngineChecksum] | None = None

    def expect(self, folder: Path, weights: Weights) -> None:
        """See WeightsProof."""
        self._expected(folder, weights)

    def verify(self, folder: Path, weights: Weights, reported_total: str, reported: dict[str, str]) -> None:
        """Raises VersionMismatch unless folder, promise and engine agree. Blocks while hashing."""
        verify_weights(EngineChecksum(tensors=reported, total=reported_total), self._expected(folder, weights))

    def _expected(self, folder: Path, weights: Weights) -> EngineChecksum:
        known = self._known
        if known is None or known[0] != weights:
            tensors = load_weights(folder)
            _require(folder, weights_checksum(tensors), weights)
            tied = Architecture.from_folder(folder).tied
            known = self._known = (weights, engine_checksums(tensors, tied_embeddings=tied))
        return known[1]


class PacedProof:
    """The paced engine computes nothing: it reports the sha256 of the weights file it was told to load.

    Works without torch: many paced cells fit one machine.
    """

    def expect(self, folder: Path, weights: Weights) -> None:
        """Nothing that would be worth doing beforehand."""

    def verify(self, folder: Path, weights: Weights, reported_total: str, reported: dict[str, str]) -> None:
        """Raises VersionMismatch unless the file's hash is the reported one."""
        _require(folder, arrays_checksum(load_arrays(folder)), weights)
        digest = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
        if digest != reported_total:
            raise VersionMismatch(f"the paced engine reports {reported_total[:12]}, its folder holds {digest[:12]}")


def _require(folder: Path, found: str, weights: Weights) -> None:
    if found != weights.checksum:
        raise VersionMismatch(f"{folder} does not hold version {weights.version}: checksum {found[:12]}")
