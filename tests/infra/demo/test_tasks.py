"""The written tasks: the Harbor layout, scored by their own tests."""

import filecmp
import os
import subprocess

import pytest

from infra.demo.families import FAMILIES
from infra.demo.tasks import repair_of, write_task_set
from infra.tasks import TaskSet, load_task

COUNT = 2 * len(FAMILIES)


@pytest.fixture(scope="module")
def task_set(tmp_path_factory):
    out = tmp_path_factory.mktemp("tasks")
    write_task_set(out, train=COUNT, heldout=COUNT, seed=7)
    return TaskSet(out)


def environment(task, workspace, logs):
    return {
        "PATH": os.environ["PATH"],
        "GYRE_TESTS_DIR": str(task.tests),
        "GYRE_LOGS_DIR": str(logs),
        "GYRE_WORKSPACE": str(workspace),
    }


def score(task, workspace, logs):
    script = task.tests / "test.sh"
    subprocess.run(["/bin/sh", str(script)], env=environment(task, workspace, logs), cwd="/", check=True)
    return (logs / "verifier" / "reward.txt").read_text()


@pytest.mark.parametrize("index", range(COUNT))
def test_an_oracle_scores_one_and_a_no_op_zero(task_set, tmp_path, index):
    task = load_task(task_set.tasks("heldout")[index])
    workspace = tmp_path / "workspace"
    task.write_workspace(workspace)
    assert score(task, workspace, tmp_path / "before") == "0\n"
    subprocess.run(["/bin/sh", task.solution], env=environment(task, workspace, tmp_path), cwd="/", check=True)
    assert score(task, workspace, tmp_path / "after") == "1\n"


@pytest.mark.parametrize("index", range(len(FAMILIES)))
def test_the_tempting_way_scores_zero(task_set, tmp_path, index):
    task = load_task(task_set.tasks("heldout")[index])
    task.write_workspace(tmp_path / "w")
    for command in repair_of("heldout", 7, index).tempting:
        subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path / "w", check=True)
    assert score(task, tmp_path / "w", tmp_path) == "0\n"


def test_a_deleted_file_or_an_empty_workspace_scores_zero(task_set, tmp_path):
    task = load_task(task_set.tasks("heldout")[0])
    (tmp_path / "w").mkdir()
    assert score(task, tmp_path / "w", tmp_path) == "0\n"


def test_no_workspace_at_all_is_no_score(task_set, tmp_path):
    task = load_task(task_set.tasks("heldout")[0])
    with pytest.raises(subprocess.CalledProcessError):
        score(task, tmp_path / "gone", tmp_path)
    assert not (tmp_path / "verifier").exists()


def test_the_layouts_own_paths_are_the_default(task_set):
    text = (task_set.tasks("train")[0] / "tests" / "test.sh").read_text()
    for variable, path in (("TESTS_DIR", "/tests"), ("LOGS_DIR", "/logs"), ("WORKSPACE", "/app")):
        assert f"${{GYRE_{variable}:-{path}}}" in text


def test_written_twice_is_the_same(task_set, tmp_path):
    write_task_set(tmp_path, train=COUNT, heldout=COUNT, seed=7)
    assert same(filecmp.dircmp(task_set.folder, tmp_path))


def same(compared):
    files = not (compared.left_only or compared.right_only or compared.diff_files)
    return files and all(same(inner) for inner in compared.subdirs.values())


def test_heldout_tasks_are_not_training_tasks():
    seen = {repr(repair_of(split, 0, i)) for split in ("train", "demonstration") for i in range(600)}
    assert not seen & {repr(repair_of("heldout", 0, i)) for i in range(200)}


def test_every_family_is_in_every_split(task_set):
    for split in ("train", "heldout"):
        families = {load_task(folder).metadata["family"] for folder in task_set.tasks(split)}
        assert families == set(FAMILIES)
