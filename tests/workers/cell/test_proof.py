"""An engine is believed only when promise, folder and its own checksums agree."""

from pathlib import Path

import pytest

from infra.engine.client import EngineChecksum
from infra.engine.fingerprint import engine_checksums
from infra.weights.folder import folder_checksum, load_weights
from tests.workers.cell.training.material import write_policy
from workers.cell.proof import SglangProof
from workflows.messages.errors import VersionMismatch
from workflows.messages.scheduling import Weights


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return write_policy(root / "right", seed=1), write_policy(root / "wrong", seed=2)


def reported_by(folder: Path) -> EngineChecksum:
    return engine_checksums(load_weights(folder), tied_embeddings=True)


def show(proof: SglangProof, folder: Path, weights: Weights, engine: EngineChecksum) -> None:
    proof.verify(folder, weights, engine.total, dict(engine.tensors))


def test_an_engine_that_holds_what_its_folder_holds(folders: tuple[Path, Path]) -> None:
    right, _ = folders
    weights = Weights(version=3, checksum=folder_checksum(right))
    for proof in (SglangProof(), SglangProof()):
        proof.expect(right, weights)
        show(proof, right, weights, reported_by(right))
    show(SglangProof(), right, weights, reported_by(right))


def test_an_engine_with_other_tensors_is_refused_by_name(folders: tuple[Path, Path]) -> None:
    right, wrong = folders
    weights = Weights(version=3, checksum=folder_checksum(right))
    proof = SglangProof()
    proof.expect(right, weights)
    with pytest.raises(VersionMismatch, match=r"other weights in 18 parameters"):
        show(proof, right, weights, reported_by(wrong))


def test_a_folder_that_breaks_the_promise_is_refused_before_any_engine_is_asked(folders: tuple[Path, Path]) -> None:
    right, wrong = folders
    weights = Weights(version=3, checksum=folder_checksum(right))
    proof = SglangProof()
    with pytest.raises(VersionMismatch, match="does not hold version 3"):
        proof.expect(wrong, weights)
    with pytest.raises(VersionMismatch, match="does not hold version 3"):
        show(proof, wrong, weights, reported_by(wrong))
