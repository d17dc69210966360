import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.checkpoints import CheckpointMeta, CheckpointStore
from infra.checkpoints.store import MANIFEST
from workflows.messages.errors import CheckpointUnusable


def meta(version: int, checksum: str = "c") -> CheckpointMeta:
    return CheckpointMeta(
        version=version,
        checksum=checksum,
        batch=f"b{version}",
        optimizer_steps=version,
        code_version="test",
        counters={"cursor": [version, {"epoch": 1}]},
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
    with pytest.raises(CheckpointUnusable, match="not a complete"):
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


@pytest.mark.parametrize("damage", [cut_file, flip_bit, lose_file, lose_manifest, cut_manifest, foreign_manifest])
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
