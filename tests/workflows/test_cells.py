"""Role changes that fail, park, are superseded or whose workflows are gone."""

import asyncio

import pytest
from temporalio.client import WorkflowUpdateFailedError

from infra.settings.fleet import Fleet
from infra.temporal.client import ask
from tests.workflows.fake_cell import WEIGHTS_BYTES
from tests.workflows.faults import Fault
from tests.workflows.world import FakeWorld
from workers.supervisor.hints import resume_command
from workers.supervisor.run_folder import open_manifest
from workflows import commands
from workflows.books import SchedulerState
from workflows.cell import Cell, CellState
from workflows.messages import ids
from workflows.messages.errors import Fenced, StillHeld, VersionMismatch
from workflows.messages.scheduling import Weights
from workflows.messages.transition import Direction, MoveCell, Resolution, TransitionResult
from workflows.scheduler import Scheduler

pytestmark = pytest.mark.timeout(400)


def ends(world: FakeWorld, direction: Direction, cell: int = 0) -> list[TransitionResult]:
    return [report.result for report in world.transitions if (report.direction, report.cell) == (direction, cell)]


def held_after(world: FakeWorld, fault: Fault) -> asyncio.Event:
    """Once `fault` has struck, the next role change waits at its first step until a test has looked."""
    looked = asyncio.Event()
    world.faults.add("reroute_executions", times=None, when=lambda request: fault.hits, until=looked.is_set)
    return looked


async def parked(world: FakeWorld, cell: int) -> str:
    """Wait until the cell is parked; what the web UI shows of it."""
    await world.until(lambda state: state.cells[cell].role == "parked")
    await world.blocked(ids.cell_workflow_id(world.run, cell))
    return await world.shown(ids.cell_workflow_id(world.run, cell))


async def test_a_step_that_fails_before_memory_is_released_rolls_back(world: FakeWorld):
    looked = held_after(world, world.faults.add("cancel_requests", error=Fenced("no")))
    burst = await world.start_burst()
    await world.eventually(lambda: ends(world, Direction.TO_TRAINING))
    assert ends(world, Direction.TO_TRAINING) == [TransitionResult.ROLLED_BACK]
    assert world.doors[0] == 0
    await world.eventually(lambda: any(entry.kind == "cell" and entry.cell == 0 for entry in world.ledger.values()))
    looked.set()
    assert (await burst.result()).version == 1  # after the cooldown it is tried again
    assert ends(world, Direction.TO_TRAINING) == [TransitionResult.ROLLED_BACK, TransitionResult.DONE]


@pytest.mark.parametrize("after", [False, True])
async def test_a_failed_release_rolls_back_by_taking_memory_again(world: FakeWorld, after):
    """Whether it released (and could not say so) or not: no door opens on an engine without its weights."""
    fault = world.faults.add("release_rollout", error=VersionMismatch("held"), after=after)
    looked = held_after(world, fault)
    burst = await world.start_burst()
    await world.eventually(lambda: ends(world, Direction.TO_TRAINING))
    assert ends(world, Direction.TO_TRAINING) == [TransitionResult.ROLLED_BACK]
    assert fault.hits == 1
    assert (world.doors[0], world.cells[0].rollout_memory, world.cells[0].engine) == (0, True, world.committed)
    looked.set()
    assert (await burst.result()).version == 1


async def test_transient_failures_of_every_step_change_nothing(world: FakeWorld):
    """Case 43: five spaced single failures on a healthy cell."""
    for step in ("reroute_executions", "await_quiet", "release_rollout", "restore_training", "leave_stream",
                 "release_training", "resume_rollout", "load_weights", "verify_engine", "change_door"):  # fmt: skip
        world.faults.add(step, error=StillHeld(step), after=step == "restore_training")
    assert (await (await world.start_burst()).result()).version == 1
    await world.until(world.all_serving)
    assert {report.result for report in world.transitions} == {TransitionResult.DONE}


@pytest.mark.essential
async def test_after_release_it_parks_shows_the_command_and_goes_on_when_told(world: FakeWorld):
    world.faults.add("restore_training", error=Fenced("broken"))
    burst = await world.start_burst()
    shown = await parked(world, 0)
    name = ids.cell_workflow_id(world.run, 0)
    assert f"temporal workflow update execute --workflow-id {name} --name resolve_step --input '\"retry\"'" in shown
    assert "broken" in shown
    assert "4 rollout slots are missing" in shown
    described = await world.handle(name).describe()
    assert described.search_attributes["Phase"] == ["BLOCKED"]
    await world.until(lambda state: any("the core is parked" in str(entry.reasons) for entry in world.ledger.values()))
    assert [entry.cell for entry in world.ledger.values() if entry.kind == "alarm"] == [0]
    await world.resolve(name, Resolution.RETRY)
    assert (await burst.result()).version == 1
    await world.until(world.all_serving)
    described = await world.handle(name).describe()
    assert described.search_attributes["Phase"] == ["READY"]
    with pytest.raises(WorkflowUpdateFailedError):
        await world.handle(name).execute_update("resolve_step", Resolution.RETRY)


async def test_the_command_that_is_shown_works_as_it_is(world: FakeWorld, temporal_address, tmp_path, monkeypatch):
    manifest = open_manifest(Fleet(run=world.run), tmp_path / "run")
    manifest = manifest.model_copy(update={"temporal_address": temporal_address})
    monkeypatch.setattr(commands, "_template", resume_command(manifest, "{workflow_id}", anywhere=True))
    world.faults.add("restore_training", error=Fenced("broken"))
    burst = await world.start_burst()
    (line,) = [line for line in (await parked(world, 0)).splitlines() if line.startswith("    ")]
    typed = await asyncio.create_subprocess_shell(line, cwd=tmp_path, stdout=asyncio.subprocess.DEVNULL)
    assert await typed.wait() == 0
    assert (await burst.result()).version == 1


async def test_an_aborted_transition_takes_the_cell_back_to_rollout(world: FakeWorld):
    world.faults.add("restore_training", error=Fenced("broken"))
    burst = await world.start_burst()
    await parked(world, 0)
    await world.resolve(ids.cell_workflow_id(world.run, 0), Resolution.ABORT)
    assert (await burst.result()).version == 1
    await world.until(world.all_serving)


async def test_a_publish_completes_on_the_survivors(world: FakeWorld):
    """Cases 40, 43: one engine cannot load; it serves nothing until resumed, then what was published meanwhile."""
    fault = world.faults.add("load_weights", error=VersionMismatch("disk"), times=None, when=_at_cell(1, 1))
    report = await (await world.start_burst(policy={"hold_seconds": 0, "supply_fraction": 5.0 / 5})).result()
    assert report.version == 1
    state = await world.state()
    assert [cell.role for cell in state.cells] == ["rollout", "parked"]
    assert world.doors[1] is None
    assert (await (await world.start_burst("second")).result()).version == 2
    fault.times = 0
    await world.resolve(ids.cell_workflow_id(world.run, 1), Resolution.RETRY)
    state = await world.until(world.all_serving)
    assert state.cells[1].version == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_publish_that_keeps_kv(world: FakeWorld, fails):
    """Requests are paused in place; if the swap fails for good they are cut, and it is an ordinary publish."""
    if fails:
        world.faults.add("swap_weights", error=VersionMismatch("no"), times=None)
    weights = Weights(version=1, checksum="by hand")
    move = MoveCell(move="by hand", direction=Direction.PUBLISH, weights=weights, publish="keep_kv")
    await world.handle(ids.cell_workflow_id(world.run, 1)).signal("move", move)
    await world.eventually(lambda: ends(world, Direction.PUBLISH, 1))
    assert ends(world, Direction.PUBLISH, 1) == [TransitionResult.DONE]
    publishes = [report for report in world.transitions if report.direction is Direction.PUBLISH]
    assert world.cells[1].engine == weights
    expected = ["close-door", "swap-weights", "open-door"]
    if fails:
        expected[2:2] = ["cancel-requests", "await-quiet", "load-weights", "verify-engine"]
    assert [step.name for step in publishes[0].steps] == expected
    assert [step.ok for step in publishes[0].steps] == [True, not fails, *[True] * (len(expected) - 2)]
    assert publishes[0].figures.weights_bytes == WEIGHTS_BYTES


def _at_cell(cell: int, version: int):
    return lambda request: request.cell == cell and request.weights.version == version


async def test_a_newer_boot_supersedes_a_transition_that_hangs(world: FakeWorld):
    world.faults.add("restore_training", hang=True)
    burst = await world.start_burst()
    await world.eventually(lambda: world.called("restore_training"))
    await world.boot(0)
    assert (await burst.result()).version == 1
    assert ends(world, Direction.TO_TRAINING) == [TransitionResult.SUPERSEDED, TransitionResult.DONE]


async def test_boots_in_quick_succession_end_with_the_newest(world: FakeWorld):
    world.faults.add("load_weights", hang=True, times=2)
    for _ in range(3):
        await world.boot(1)
    await world.until(lambda state: state.cells[1].boot_epoch == 4 and world.all_serving(state))
    assert (await (await world.start_burst()).result()).version == 1


async def test_a_terminated_transition_parks_its_cell(world: FakeWorld):
    gone = asyncio.Event()
    world.faults.add("restore_training", times=None, until=gone.is_set)
    burst = await world.start_burst()
    await world.eventually(lambda: world.called("restore_training"))
    lease = (await ask(world.handle(ids.cell_workflow_id(world.run, 0)), "state", dict))["lease"]
    await world.handle(ids.transition_id(world.run, 0, lease)).terminate()
    gone.set()
    assert "without a result" in await parked(world, 0)
    await world.resolve(ids.cell_workflow_id(world.run, 0), Resolution.RETRY)
    assert (await burst.result()).version == 1


async def test_a_cell_whose_workflow_is_gone_is_not_waited_for(world: FakeWorld):
    await world.handle(ids.cell_workflow_id(world.run, 1)).terminate()
    assert (await (await world.start_burst()).result()).version == 1
    state = await world.state()
    assert [cell.role for cell in state.cells] == ["rollout", "lost"]


async def test_a_core_resumed_after_its_burst_goes_home(make_world):
    """With one cell its slots are all there is: a core that trains for nobody would stop the run."""
    world = await make_world((4,))
    world.faults.add("restore_training", error=Fenced("broken"))
    burst = await world.start_burst()
    await parked(world, 0)
    await burst.cancel()
    await world.until(lambda state: state.burst is None)
    await world.resolve(ids.cell_workflow_id(world.run, 0), Resolution.RETRY)
    await world.until(world.all_serving)
    assert (await (await world.start_burst("second")).result()).version == 1


async def test_moves_of_another_boot_and_reports_of_no_cell_are_ignored(world: FakeWorld):
    from workflows.messages.fleet import CellReport, CellRole
    from workflows.messages.scheduling import Weights
    from workflows.messages.transition import MoveCell

    weights = Weights(version=0, checksum="base")
    old = MoveCell(move="x/1", boot_epoch=7, direction=Direction.TO_TRAINING, weights=weights)
    await world.handle(ids.cell_workflow_id(world.run, 1)).signal("move", old)
    await world.scheduler.signal("cell_reported", CellReport(cell=9, boot_epoch=1, role=CellRole.ROLLOUT))
    stale = CellReport(cell=1, boot_epoch=0, role=CellRole.TRAINING)
    await world.scheduler.signal("cell_reported", stale)
    await asyncio.sleep(0.5)
    assert world.all_serving(await world.state())
    assert (await (await world.start_burst()).result()).version == 1


async def test_a_cell_begun_anew_repeats_no_transition(world: FakeWorld):
    """Its workflow was terminated: what its next life does is recorded beside what the one before did."""
    name = ids.cell_workflow_id(world.run, 1)
    await world.handle(name).terminate()
    start = CellState(run=world.run, spec=world.specs[1], weights=world.committed)
    await world.client.start_workflow(Cell.run, start, id=name, task_queue=ids.WORKFLOW_QUEUE)
    await world.boot(1)
    await world.until(lambda state: state.cells[1].boot_epoch == 2 and world.all_serving(state))
    await world.eventually(lambda: len(ends(world, Direction.BOOT, 1)) == 2)
    boots = [report.transition for report in world.transitions if report.cell == 1]
    assert len(set(boots)) == len(boots) == 2
    assert boots == sorted(boots)


async def test_a_scheduler_begun_anew_is_obeyed_and_on_record(world: FakeWorld):
    """Its moves and its entries are none that the cells and the ledger have seen before."""
    assert (await (await world.start_burst()).result()).version == 1
    await world.until(world.all_serving)
    await world.whole_ledger()
    before = dict(world.ledger)
    old = await world.state()
    await world.scheduler.terminate()
    spec = old.spec.model_copy(update={"weights": old.weights})
    start = SchedulerState(spec=spec, weights=old.weights, cells=old.cells)
    await world.client.start_workflow(
        Scheduler.run, start, id=ids.scheduler_id(world.run), task_queue=ids.WORKFLOW_QUEUE
    )
    assert (await (await world.start_burst("second")).result()).version == 2
    await world.until(world.all_serving)
    await world.whole_ledger()
    moved = [entry for token, entry in world.ledger.items() if token not in before and entry.kind == "move"]
    assert moved
    assert before.items() <= world.ledger.items()
