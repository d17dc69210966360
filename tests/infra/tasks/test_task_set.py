import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.tasks import TaskSet, positions
from workflows.messages.errors import InvalidSpec


def make(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "task.toml").write_text("")
    return folder


def test_splits_are_sorted(tmp_path):
    make(tmp_path / "train", "b", "a")
    make(tmp_path / "heldout", "c")
    (tmp_path / "train" / "notes").mkdir()
    tasks = TaskSet(tmp_path)
    assert [path.name for path in tasks.tasks("train")] == ["a", "b"]
    assert [path.name for path in tasks.first("heldout", 3)] == ["c", "c", "c"]


def test_a_flat_folder_is_for_training_only(tmp_path):
    tasks = TaskSet(make(tmp_path, "b", "a"))
    assert [path.name for path in tasks.tasks("train")] == ["a", "b"]
    with pytest.raises(InvalidSpec, match="heldout"):
        tasks.tasks("heldout")


def test_faults_are_named(tmp_path):
    with pytest.raises(InvalidSpec, match="tasks"):
        TaskSet(tmp_path / "none")
    with pytest.raises(InvalidSpec, match="split"):
        TaskSet(tmp_path).tasks("train")


def test_sampling_is_a_function_of_seed_and_position(tmp_path):
    tasks = TaskSet(make(tmp_path, *(f"{i:02d}" for i in range(20))))
    whole = tasks.sample("train", seed=3, start=0, count=50)
    assert whole[10:25] == tasks.sample("train", seed=3, start=10, count=15)
    assert whole != tasks.sample("train", seed=4, start=0, count=50)


@given(st.integers(1, 30), st.integers(0, 5), st.integers(0, 100), st.integers(0, 80))
def test_pieces_of_the_order_join(size, seed, start, count):
    whole = positions(size, seed=seed, start=0, count=start + count)
    assert positions(size, seed=seed, start=start, count=count) == whole[start:]
    assert len(whole) == start + count
    for epoch in range(len(whole) // size):
        assert sorted(whole[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_epochs_differ():
    order = positions(30, seed=0, start=0, count=60)
    assert order[:30] != order[30:]


def test_an_empty_set_has_no_order():
    with pytest.raises(ValueError, match="size"):
        positions(0, seed=0, start=0, count=1)
