import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.checkpoints import CheckpointMeta, CheckpointStore
from infra.checkpoints.manifest import MANIFEST, SEAL
from infra.checkpoints.store import COMMITTED
from workflows.messages.batch_ledger import BatchLedger, LedgerEntry
from workflows.messages.errors import CheckpointUnusable


def meta(version: int, checksum: str = "c") -> CheckpointMeta:
    return CheckpointMeta(
        version=version,
        checksum=checksum,
        optimizer_steps=version,
        code_version="test",
        counters={"cursor": [version, {"epoch": 1}]},
        ledger=BatchLedger(
            batch=f"b{version}",
            version_before=max(0, version - 1),
            groups=("first/0",),
            micro_steps=(LedgerEntry(micro_step=0, attempt=2, cell=1, boot_epoch=3),),
            valid_executions=4,
            gradient_norm=0.5,
            gradient_checksum="g",
        ),
    )


def fill(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w" * 1000)
    (folder / "state").write_bytes(b"s")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.root.iterdir())


def test_what_was_bound_together_comes_back(store: CheckpointStore) -> None:
    written = store.write(meta(3), fill)
    found = store.last_complete()
    assert (found, found.meta) == (written, meta(3))
    assert found.ref.model_dump() == {"name": "v00000003-a0001", "version": 3, "checksum": "c"}
    assert (found.folder / "weights").read_bytes() == b"w" * 1000


def test_nothing_there_is_a_clear_error(store: CheckpointStore) -> None:
    assert store.list() == ()
    assert store.committed() is None
    with pytest.raises(CheckpointUnusable, match="no complete checkpoint"):
        store.last_complete()
    with pytest.raises(CheckpointUnusable, match="there is no checkpoint"):
        store.commit("v00000001-a0001")


def cut_file(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w" * 999)


def flip_bit(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w" * 999 + b"v")


def lose_file(folder: Path) -> None:
    (folder / "state").unlink()


def lose_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def cut_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text()[:50])


def foreign_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text(json.dumps({"meta": {}}))


def lose_seal(folder: Path) -> None:
    (folder / SEAL).unlink()


def add_file(folder: Path) -> None:
    (folder / "model-2.safetensors").write_bytes(b"of somebody else")


DAMAGES = [cut_file, flip_bit, lose_file, add_file, lose_manifest, cut_manifest, foreign_manifest, lose_seal]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_torn_checkpoint_is_passed_over(store: CheckpointStore, damage: Callable[[Path], None]) -> None:
    store.write(meta(3), fill)
    damage(store.write(meta(4), fill).folder)
    assert store.last_complete().meta.version == 3
    with pytest.raises(CheckpointUnusable):
        store.find(4)


@pytest.mark.parametrize("step", ["fill", "manifest", "rename"])
def test_a_writer_that_dies_leaves_no_checkpoint(
    store: CheckpointStore, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(meta(3), fill)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "rename":
            patch.setattr(os, "rename", die)
        if step == "manifest":
            patch.setattr(Path, "write_text", die)
        with pytest.raises(KeyboardInterrupt):
            store.write(meta(4), die if step == "fill" else fill)
    assert [checkpoint.meta.version for checkpoint in store.list()] == [3]
    assert store.write(meta(4), fill).meta.version == 4


def test_a_version_written_again_is_another_checkpoint(store: CheckpointStore) -> None:
    store.write(meta(4, "first"), fill)
    store.write(meta(4, "second"), fill)
    assert names(store) == ["v00000004-a0001", "v00000004-a0002"]
    assert store.last_complete().meta.checksum == "second"
    assert store.find(4, "first").attempt == 1
    assert store.find(4).attempt == 2
    with pytest.raises(CheckpointUnusable):
        store.find(4, "third")


def test_the_newest_and_the_committed_stay(store: CheckpointStore) -> None:
    for version in range(1, 5):
        store.write(meta(version), fill)
    store.commit("v00000002-a0001")
    assert names(store) == ["COMMITTED", "v00000002-a0001", "v00000003-a0001", "v00000004-a0001"]
    (store.root / ".draft-v00000005-a0001-99").mkdir()
    store.write(meta(4, "retried"), fill)
    store.commit("v00000004-a0002")
    assert names(store) == ["COMMITTED", "v00000003-a0001", "v00000004-a0002"]
    committed = store.committed()
    assert committed is not None
    assert committed.meta.checksum == "retried"


def test_a_late_commit_does_not_go_back(store: CheckpointStore) -> None:
    for version in (1, 2):
        store.write(meta(version), fill)
    store.commit("v00000002-a0001")
    store.commit("v00000001-a0001")
    committed = store.committed()
    assert committed is not None
    assert committed.meta.version == 2


def test_foreign_entries_are_left_alone(store: CheckpointStore) -> None:
    store.write(meta(1), fill)
    (store.root / "notes").mkdir()
    store.commit("v00000001-a0001")
    assert names(store) == ["COMMITTED", "notes", "v00000001-a0001"]


@pytest.mark.parametrize("name", ["weights", "state", MANIFEST, SEAL])
def test_a_flipped_byte_anywhere_is_found_and_named(store: CheckpointStore, name: str) -> None:
    checkpoint = store.write(meta(3), fill)
    path = checkpoint.folder / name
    right = path.read_bytes()
    for place in range(0, len(right), max(1, len(right) // 24)):
        path.write_bytes(right[:place] + bytes([right[place] ^ 1 << place % 8]) + right[place + 1 :])
        # A digest that does not fit: either may be the wrong one.
        is_digest = name == SEAL and place < 64 and chr(path.read_bytes()[place]) in "0123456789abcdef"
        named = MANIFEST if is_digest else name
        with pytest.raises(CheckpointUnusable, match=named):
            checkpoint.verify()
        assert [damage.file for damage in checkpoint.damage()] == [named]
        with pytest.raises(CheckpointUnusable, match="no complete checkpoint"):
            store.find(3)
    path.write_bytes(right)
    checkpoint.verify()


def test_only_what_is_read_is_hashed(store: CheckpointStore) -> None:
    """Whoever loads the weights is not kept from them by the rest, and hashes none of it."""
    folder = store.write(meta(3), fill).folder
    (folder / "state").write_bytes(b"t")
    assert store.find(3, unread={"state"}).folder == folder
    with pytest.raises(CheckpointUnusable, match="state holds other bytes"):
        store.find(3, unread={"weights"})
    with pytest.raises(CheckpointUnusable, match="state holds other bytes"):
        store.find(3)


@pytest.mark.parametrize("damage", [cut_file, lose_file, add_file, cut_manifest, lose_seal])
def test_what_is_not_read_still_belongs_to_a_sealed_set(store: CheckpointStore, damage: Callable[[Path], None]) -> None:
    damage(store.write(meta(3), fill).folder)
    with pytest.raises(CheckpointUnusable):
        store.find(3, unread={"weights", "state"})


def test_everything_that_is_damaged_is_named(store: CheckpointStore) -> None:
    checkpoint = store.write(meta(3), fill)
    cut_file(checkpoint.folder)
    lose_file(checkpoint.folder)
    add_file(checkpoint.folder)
    with pytest.raises(CheckpointUnusable, match=r"state is missing; weights has 999 bytes instead of 1000; model-2"):
        checkpoint.verify()


def test_a_checkpoint_under_another_name_is_none(store: CheckpointStore) -> None:
    folder = store.write(meta(3), fill).folder
    folder.rename(store.root / "v00000004-a0001")
    assert store.list() == ()
    assert store.broken() == {"v00000004-a0001": "v00000004-a0001: MANIFEST.json is of version 3"}


def test_the_seal_is_what_sha256sum_checks(store: CheckpointStore) -> None:
    folder = store.write(meta(3), fill).folder
    checked = subprocess.run(["sha256sum", "-c", SEAL], cwd=folder, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, f"{MANIFEST}: OK\n")


@pytest.mark.parametrize("place", [0, 9, 12, 16, 20, 79])
def test_a_damaged_mark_is_found_and_replaced_by_the_next_commit(store: CheckpointStore, place: int) -> None:
    store.commit(store.write(meta(3), fill).folder.name)
    mark = store.root / COMMITTED
    right = mark.read_bytes()
    mark.write_bytes(right[:place] + bytes([right[place] ^ 2]) + right[place + 1 :])
    with pytest.raises(CheckpointUnusable, match=COMMITTED):
        store.committed()
    store.commit(store.write(meta(4), fill).folder.name)
    committed = store.committed()
    assert committed is not None
    assert committed.meta.version == 4


def test_a_mark_does_not_fit_another_checkpoint_of_the_same_name(store: CheckpointStore) -> None:
    first = store.write(meta(3), fill)
    store.commit(first.folder.name)
    first.folder.rename(store.root / "aside")
    store.write(meta(3, "other"), fill)
    with pytest.raises(CheckpointUnusable, match="does not fit"):
        store.committed()


def test_what_an_interrupted_removal_left_goes_with_the_next_commit(store: CheckpointStore) -> None:
    for version in (1, 2, 3):
        store.write(meta(version), fill)
    lose_manifest(store.root / "v00000001-a0001")
    store.commit("v00000003-a0001")
    assert names(store) == ["COMMITTED", "v00000002-a0001", "v00000003-a0001"]


def test_drafts_of_dead_writers_do_not_pile_up(store: CheckpointStore) -> None:
    store.write(meta(1), fill)
    for pid in (7, 8):
        fill_draft = store.root / f".draft-v00000002-a0001-{pid}"
        fill_draft.mkdir()
        fill(fill_draft)
    store.write(meta(2), fill)
    assert names(store) == ["v00000001-a0001", "v00000002-a0001"]


def test_a_version_that_cannot_be_had_says_what_is_damaged(store: CheckpointStore) -> None:
    cut_file(store.write(meta(3), fill).folder)
    lose_manifest(store.write(meta(3), fill).folder)
    flip_bit(store.write(meta(4), fill).folder)
    with pytest.raises(CheckpointUnusable) as caught:
        store.find(3)
    for part in ("version 3", "a0001: weights has 999 bytes instead of 1000", "a0002: MANIFEST.json is missing"):
        assert part in str(caught.value)
    assert "v00000004" not in str(caught.value)
    with pytest.raises(CheckpointUnusable, match=r"v00000004-a0001: weights holds other bytes"):
        store.last_complete()
