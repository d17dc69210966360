"""The Harbor layout: what is read, and that every fault names where it is."""

import os

import pytest

from infra.tasks import load_task
from workflows.messages.errors import InvalidTask

TOML = """version = "1.0"
[metadata]
author = "x"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 30
env = { A = "b" }
[environment]
cpus = 2
memory = "2G"
build_timeout_sec = 600.0
"""


@pytest.fixture
def folder(tmp_path):
    task = tmp_path / "fix-it"
    (task / "environment" / "src").mkdir(parents=True)
    (task / "environment" / "src" / "run.sh").write_text("echo hi\n")
    os.chmod(task / "environment" / "src" / "run.sh", 0o750)
    (task / "environment" / "link").symlink_to("src/run.sh")
    (task / "tests").mkdir()
    (task / "tests" / "test.sh").write_text("exit 0\n")
    (task / "task.toml").write_text(TOML)
    (task / "instruction.md").write_text("Fix it — now.\n\n", encoding="utf-8")
    return task


def test_what_is_read(folder):
    task = load_task(folder)
    assert (task.name, task.instruction) == ("fix-it", "Fix it — now.\n\n")
    assert (task.agent_seconds, task.verifier_seconds, task.cpus, task.memory_mb) == (120.0, 30.0, 2.0, 2048)
    assert (task.metadata, task.internet) == ({"author": "x"}, False)
    assert task.solution is None


def test_a_solution_is_optional(folder):
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text("true\n")
    assert load_task(folder).solution == folder / "solution" / "solve.sh"


def test_everything_but_the_files_has_a_default(folder):
    (folder / "task.toml").write_text("")
    task = load_task(folder)
    assert (task.agent_seconds, task.verifier_seconds, task.memory_mb) == (None, None, None)


def test_workspace_keeps_modes_and_links_and_replaces_what_was_there(folder, tmp_path):
    workspace = tmp_path / "w" / "space"
    workspace.mkdir(parents=True)
    (workspace / "old").write_text("left over")
    load_task(folder).write_workspace(workspace)
    assert sorted(p.name for p in workspace.iterdir()) == ["link", "src"]
    assert (workspace / "src" / "run.sh").stat().st_mode & 0o777 == 0o750
    assert os.readlink(workspace / "link") == "src/run.sh"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[agent]\ntimeout_sec = 0", "task.toml.agent.timeout_sec"),
        ('[agent]\ntimeout_sec = "soon"', "task.toml.agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = true", "task.toml.verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = inf", "task.toml.verifier.timeout_sec"),
        ("[environment]\ncpus = -1", "task.toml.environment.cpus"),
        ('[environment]\nmemory = "lots"', "task.toml.environment.memory"),
        ('[environment]\nallow_internet = "no"', "task.toml.environment.allow_internet"),
        ("agent = 3", "task.toml.agent"),
        ("[agent", "task.toml"),
    ],
)
def test_a_wrong_value_names_its_key(folder, text, field):
    (folder / "task.toml").write_text(text)
    with pytest.raises(InvalidTask) as refused:
        load_task(folder)
    assert refused.value.field == field


@pytest.mark.parametrize("missing", ["task.toml", "instruction.md", "tests/test.sh"])
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(InvalidTask) as refused:
        load_task(folder)
    assert refused.value.field == missing


@pytest.mark.parametrize("there", ["task.toml", "instruction.md", "tests/test.sh"])
def test_a_folder_in_the_place_of_a_file_is_named(folder, there):
    """And not tried again: no retry turns it into a file."""
    (folder / there).unlink()
    (folder / there).mkdir()
    with pytest.raises(InvalidTask) as refused:
        load_task(folder)
    assert refused.value.field == there


def test_an_instruction_that_says_nothing(folder):
    (folder / "instruction.md").write_text(" \n")
    with pytest.raises(InvalidTask, match=r"instruction\.md"):
        load_task(folder)


def test_a_dockerfile_without_a_runtime(folder, tmp_path):
    (folder / "environment" / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(InvalidTask, match="container runtime") as refused:
        load_task(folder)
    assert refused.value.field == "environment"
    task = load_task(folder, container_runtime=True)
    with pytest.raises(InvalidTask, match="container runtime"):
        task.write_workspace(tmp_path / "w")


def test_a_docker_image_without_a_runtime(folder):
    (folder / "task.toml").write_text('[environment]\ndocker_image = "some/image"')
    with pytest.raises(InvalidTask, match="container runtime"):
        load_task(folder)
