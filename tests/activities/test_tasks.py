"""Case 52: drawing tasks skips none and repeats none within an epoch; an evaluation is always the same."""

from pathlib import Path

import pytest

from activities.tasks import TaskActivities
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest
from workflows.messages.burst import HarnessChoice, Purpose
from workflows.messages.errors import InvalidSpec
from workflows.messages.tasks import SelectTasks


@pytest.fixture
def fleet_fields() -> dict[str, object]:
    return {}


@pytest.fixture
def select(tmp_path: Path, environment, fleet_fields):
    for split, count in (("train", 20), ("heldout", 5)):
        for index in range(count):
            folder = tmp_path / "sets/small" / split / f"{index:02d}"
            folder.mkdir(parents=True)
            (folder / "task.toml").write_text("")
    manifest = RunManifest(
        fleet=Fleet.model_validate({"task_sets": {"small": "sets/small"}} | fleet_fields),
        root=str(tmp_path),
        run_dir=str(tmp_path / "run"),
        temporal_address="127.0.0.1:1",
        proxy_port=1,
        proxy_admin_port=2,
        engine_ports=(),
        actor_ports=(),
        linker_ports=(),
    )
    activities = TaskActivities(manifest)

    async def run(
        position: int, count: int, *, purpose=Purpose.TRAIN, tasks="small", split="train", seed=0, harness=None
    ):
        request = SelectTasks(
            run="test",
            tasks=tasks,
            split=split,
            purpose=purpose,
            seed=seed,
            position=position,
            count=count,
            harness=harness,
        )
        selected = await environment().run(activities.select_tasks, request)
        assert all(Path(task).is_absolute() for task in selected.tasks)
        return [Path(task).name for task in selected.tasks], selected.position

    return run


async def test_two_epochs_see_every_task_twice(select):
    drawn: list[str] = []
    position = 0
    while position < 40:
        names, position = await select(position, min(7, 40 - position))
        drawn += names
    assert sorted(drawn[:20]) == sorted(drawn[20:]) == [f"{index:02d}" for index in range(20)]
    assert drawn[:20] != drawn[20:]
    assert (await select(13, 4))[0] == drawn[13:17]
    assert (await select(0, 20, seed=1))[0] != drawn[:20]
    assert await select(5, 0) == ([], 5)


async def test_an_evaluation_is_the_first_in_order_and_moves_nothing(select):
    names, position = await select(11, 3, purpose=Purpose.EVALUATE, split="heldout", seed=9)
    assert (names, position) == (["00", "01", "02"], 11)


async def test_a_folder_may_be_named_itself_and_a_missing_one_is_an_error(select, tmp_path):
    assert (await select(0, 1, tasks="sets/small"))[1] == 1
    assert (await select(0, 1, tasks=str(tmp_path / "sets/small")))[1] == 1
    with pytest.raises(InvalidSpec, match=r"no such folder of tasks: .*nowhere; the task sets are .*small"):
        await select(0, 1, tasks="nowhere")


@pytest.mark.parametrize(
    ("harness", "told"),
    [
        (HarnessChoice(name="mini-swe-agnet"), r"^harness\.name: no harness 'mini-swe-agnet'; there are"),
        (HarnessChoice(name="codex"), r"^harness\.name: codex is not installed; gyre harness install codex"),
        (HarnessChoice(name="command", settings={"comand": "true"}), r"^harness\.settings\.comand: "),
        (HarnessChoice(name="command", settings={"command": "no-such-agent"}), r"^harness: no such command"),
    ],
)
async def test_a_harness_that_can_never_run_is_refused_before_anything_is_dispatched(select, harness, told):
    with pytest.raises(InvalidSpec, match=told):
        await select(0, 2, harness=harness)


async def test_a_harness_that_can_run_is_not_in_the_way(select):
    names, _ = await select(0, 2, harness=HarnessChoice(name="command", settings={"command": "true"}))
    assert len(names) == 2


def ask_for_network(task: Path) -> None:
    for name in ("environment", "tests"):
        (task / name).mkdir()
    (task / "tests/test.sh").write_text("")
    (task / "instruction.md").write_text("Do it.")
    (task / "task.toml").write_text("[environment]\nallow_internet = true\n")


async def test_a_task_whose_tests_want_the_network_is_refused_by_name(select, tmp_path):
    ask_for_network(tmp_path / "sets/small/heldout/02")
    assert (await select(0, 2, purpose=Purpose.EVALUATE, split="heldout"))[0] == ["00", "01"]
    with pytest.raises(InvalidSpec, match=r"^tasks: the tests of 02 .*gradings_may_use_network"):
        await select(0, 3, purpose=Purpose.EVALUATE, split="heldout")


@pytest.mark.parametrize("fleet_fields", [{"gradings_may_use_network": True}])
async def test_unless_the_fleet_lets_it(select, tmp_path):
    ask_for_network(tmp_path / "sets/small/heldout/02")
    assert len((await select(0, 3, purpose=Purpose.EVALUATE, split="heldout"))[0]) == 3
