"""The core is reclaimed: another cell takes over its optimizer first, and nothing is lost, counted or trained twice."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from infra.temporal.client import ask
from tests.workflows.record import blocked
from tests.workflows.test_elastic import indices, micro_steps, reclaim, refused
from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld
from workflows.books import CellMove, HandOver
from workflows.cell_table import CellEntry, CellTable
from workflows.elastic import Elastic
from workflows.messages import ids
from workflows.messages.errors import ActorUnavailable, Fenced
from workflows.messages.fleet import CellRole, CellSpec, Elasticity, OfferCell
from workflows.messages.scheduling import Weights
from workflows.messages.transition import Resolution, TransitionResult
from workflows.succession import Succession

pytestmark = pytest.mark.timeout(400)

EAGER = {"hold_seconds": 0, "supply_fraction": 0}


def batches(world: FakeWorld, *cells: int) -> dict[str, int]:
    """Each batch of the first burst, and who is to have combined it."""
    return {ids.batch_id(world.run, "first", step): cell for step, cell in enumerate(cells)}


def fleet_notes(world: FakeWorld) -> list[tuple[int, str]]:
    return [(entry.cell, entry.reasons[0]) for entry in world.noted("fleet")]


def moved(world: FakeWorld, direction: str) -> list[tuple[int, TransitionResult]]:
    return [(move.cell, move.result) for move in world.transitions if move.direction == direction]


async def test_between_two_updates_nothing_is_computed_twice(make_world):
    """Reclaimed while it trains, with time left: its batch ends with it, the next one begins under the heir."""
    world = await make_world((4, 4, 4))
    world.may_finish = lambda cell: False
    async with watching(world) as seen:
        burst = await world.start_burst(groups_per_step=4, steps=2, policy=EAGER)
        await world.eventually(lambda: world.cells[0].held)
        assert "leaves within" in await reclaim(world, 0, deadline_seconds=300)
        world.may_finish = lambda cell: True
        report = await burst.result()
        state = await world.until(lambda state: indices(state) == [1, 2])
    assert (report.version, [step.version_after for step in report.steps], seen[-1]) == (2, [1, 2], (16, 16, 16))
    assert world.combined == batches(world, 0, state.core)
    assert not [release for release in world.called("release_batch") if release.discard]
    assert sum(micro_steps(world).values()) == len(world.called("run_micro_step")) == 16
    assert moved(world, "take_over") == [(state.core, TransitionResult.DONE)]
    assert moved(world, "retire") == [(0, TransitionResult.DONE)]
    assert world.cells[0].optimizer is None
    await world.whole_ledger()
    assert fleet_notes(world) == [(0, "reclaimed"), (state.core, "takes over"), (state.core, "core"), (0, "left")]
    assert [(named.change, named.cell, named.weights.version) for named in world.hand_overs] == [(1, state.core, 1)]
    elastic = await ask(world.scheduler, "elasticity", Elasticity)
    assert (elastic.core, elastic.costs["take_over"].count) == (state.core, 1)
    await world.until(world.all_serving)
    assert (await (await world.start_burst("second", policy=EAGER)).result()).version == 3


async def test_at_its_deadline_what_it_had_is_computed_again(world: FakeWorld):
    """In mid-batch: the version is what was committed, every micro-step counts once, and none of the old core's.

    The heir is on its way into training when it is asked for: it takes over as soon as it is there.
    """
    asked = False
    world.faults.add("restore_training", until=lambda: asked, when=lambda request: request.cell == 1)
    world.may_finish = lambda cell: cell.index == 0 and len(cell.accumulated) < 3
    burst = await world.start_burst(groups_per_step=4, policy=EAGER)
    await world.eventually(lambda: len(world.cells[0].accumulated) >= 3)
    await reclaim(world, 0, deadline_seconds=0)
    asked = True
    state = await world.until(lambda state: state.core == 1 and indices(state) == [1])
    await world.whole_ledger()
    assert not [entry for entry in world.noted("alarm") if entry.reasons[0] != "late"]
    assert world.commits == {}
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 1
    (commit,) = world.commits.values()
    assert {done.cell for done in commit.accepted} == {1}
    assert [done.index for done in commit.accepted] == list(range(8))
    assert (world.combined, state.change) == (batches(world, 1), 1)
    await world.until(world.all_serving)


async def test_a_core_that_serves_hands_over_at_once(make_world):
    """Executions are out, none of them is cut for it twice; the heir serves on while it takes over."""
    world = await make_world((4, 4, 4))
    world.harness_seconds = lambda spec: 1000.0 if spec.group < 2 else 0.0
    async with watching(world) as seen:
        burst = await world.start_burst(groups_per_step=6, policy={"hold_seconds": 0, "supply_fraction": 1})
        await world.until(lambda state: len(state.accounts.roster) == 4)
        assert (await world.state()).cells[0].role is CellRole.ROLLOUT
        await reclaim(world, 0)
        await world.until(lambda state: indices(state) == [1, 2])
        assert not burst_done(world)
        world.harness_seconds = lambda spec: 0.0
        report = await burst.result()
    assert (report.version, report.steps[0].groups_with_signal, seen[-1]) == (1, 6, (12, 12, 12))
    assert world.combined == batches(world, 1)
    assert moved(world, "take_over") == [(1, TransitionResult.DONE)]


def burst_done(world: FakeWorld) -> bool:
    return bool(world.commits)


async def test_an_heir_that_cannot_is_passed_over(make_world):
    """One refuses, one dies over it: the third takes over, and those two go on as the satellites that they were."""
    world = await make_world((4, 4, 4, 4))
    world.faults.add("take_core", error=Fenced("no"), when=lambda request: request.cell == 1, times=None)
    world.faults.add("take_core", hang=True, when=lambda request: request.cell == 2)
    await reclaim(world, 0, deadline_seconds=300)
    await world.eventually(lambda: any(request.cell == 2 for request in world.called("take_core")))
    await world.boot(2)
    state = await world.until(lambda state: indices(state) == [1, 2, 3])
    assert (state.core, state.change) == (3, 1)
    assert [cell.optimizer is not None for _, cell in sorted(world.cells.items())] == [False, False, False, True]
    await world.until(world.all_serving)
    assert (await (await world.start_burst(policy=EAGER)).result()).version == 1
    assert world.combined == batches(world, 3)


async def test_without_an_heir_the_core_stays(world: FakeWorld):
    """Past its deadline too, and training goes on; it goes as soon as somebody can take over."""
    fault = world.faults.add("take_core", error=ActorUnavailable("dead"), times=None)
    await reclaim(world, 0, deadline_seconds=0)
    await world.eventually(lambda: any("the core stays" in entry.reasons for entry in world.noted("alarm")))
    burst = await world.start_burst(policy=EAGER)
    assert (await burst.result()).version == 1
    assert (world.combined, (await world.state()).core) == (batches(world, 0), 0)
    assert sum("the core stays" in entry.reasons for entry in world.noted("alarm")) == 1
    world.faults.plan.remove(fault)
    state = await world.until(lambda state: indices(state) == [1])
    assert (state.core, state.hand_over) == (1, None)


async def test_a_core_that_nobody_can_follow_is_refused(world: FakeWorld):
    """Nor does the only one who can follow it go before it has."""
    offer = {"cell": CellSpec(index=2, engine="paced", slots=4, trains=False)}
    await world.scheduler.execute_update("offer_cell", offer)
    await world.boot(2)
    await world.until(lambda state: world.all_serving(state) and indices(state) == [0, 1, 2])
    fault = world.faults.add("take_core", error=ActorUnavailable("dead"), times=None)
    await reclaim(world, 0)
    assert "cell: 1 is to take over from cell 0, the core, which leaves" in await refused(reclaim(world, 1))
    world.faults.plan.remove(fault)
    await world.until(lambda state: indices(state) == [1, 2])
    assert "cell: 1 is the core; nobody can take over" in await refused(reclaim(world, 1))


async def test_the_new_core_may_die_as_the_old_one_could(make_world):
    """Killed in the middle of its first batch: its next boot is the core, by what is on record."""
    world = await make_world((4, 4, 4))
    await reclaim(world, 0)
    await world.until(lambda state: indices(state) == [1, 2] and state.core == 1)
    world.may_finish = lambda cell: False
    burst = await world.start_burst(groups_per_step=4, policy=EAGER)
    await world.eventually(lambda: world.cells[1].held)
    again = await world.boot(1)
    assert again.optimizer == world.committed
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 1
    assert world.combined == batches(world, 1)
    await world.until(world.all_serving)


@pytest.mark.parametrize("role", CellRole)
def test_an_heir_that_begins_anew_is_not_waited_for(role: CellRole):
    """Not even before its next boot is there: what waited in its Cell is void."""
    asked = CellMove(cell=1, move="r/7", boot_epoch=1)
    cells = CellTable((CellEntry(spec=CellSpec(index=1), role=role, boot_epoch=1),), core=1)
    passed_over: list[str] = []
    scheduler: Any = SimpleNamespace(hand_over=HandOver(heir=asked), cells=cells, _pass_over=passed_over.append)
    Succession._miss_heir(scheduler)
    gone = role in (CellRole.LOST, CellRole.PARKED, CellRole.STARTING)
    assert passed_over == ([f"it is {role.value}"] if gone else [])


def test_the_first_cell_may_come_back_if_it_trains():
    """After it has handed the core over and left; no stack would follow another one."""
    scheduler: Any = SimpleNamespace(
        cells=SimpleNamespace(entries={1: None}), reclaimed={0}, spec=SimpleNamespace(max_cells=8)
    )
    Elastic._may_offer(scheduler, OfferCell(cell=CellSpec(index=0)))
    with pytest.raises(ApplicationError, match=r"cell\.trains"):
        Elastic._may_offer(scheduler, OfferCell(cell=CellSpec(index=0, trains=False)))


@pytest.mark.parametrize("held", [True, False, None])
def test_a_core_that_stays_wakes_nobody_at_every_look(held: bool | None):
    """What is told to a batch wakes the Scheduler: told at every look, it would never rest."""
    called: list[bool] = []
    batch = None if held is None else SimpleNamespace(held=held)
    scheduler: Any = SimpleNamespace(
        batch=batch, dirty=False, cells=CellTable(()), _call_members=lambda: called.append(True)
    )
    core = CellEntry(spec=CellSpec(index=0))
    Succession._keep(scheduler, core, HandOver(told=True))
    assert (bool(called), scheduler.dirty, scheduler.cells.core_stays) == (held is True, held is True, True)


@pytest.mark.parametrize(("change", "waits"), [(1, False), (2, True)])
async def test_the_record_of_a_hand_over_does_not_stand_for_the_next_one(change: int, waits: bool):
    async def recorded(*_, **__) -> None:
        scheduler.cells.change = change

    cells = SimpleNamespace(change=1)
    scheduler: Any = SimpleNamespace(run_name="r", naming=True, cells=cells, control="q", parked_call=recorded)
    await Succession._record_core(scheduler, 1, Weights(version=0, checksum="c"))
    assert scheduler.naming is waits


async def test_a_core_that_is_dead_for_good_is_given_up(world: FakeWorld):
    """Killed in mid-batch and never booted again: the heir goes on from what was committed, the burst ends."""
    world.may_finish = lambda cell: cell.index == 0 and len(cell.accumulated) < 2
    burst = await world.start_burst(groups_per_step=4, policy=EAGER)
    await world.eventually(lambda: len(world.cells[0].accumulated) >= 2)
    await world.cells[0].die()
    await reclaim(world, 0, deadline_seconds=0)
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 1
    assert (world.combined, set(micro_steps(world))) == (batches(world, 1), {1})
    await world.until(lambda state: indices(state) == [1])


@pytest.mark.parametrize("resolution", [Resolution.RETRY, Resolution.SKIP, Resolution.ABORT])
async def test_a_record_that_is_refused_parks(world: FakeWorld, resolution: Resolution):
    """The old core waits for it, and training goes on; the web UI shows the line that goes on."""
    world.faults.add("record_core", error=Fenced("it went to another cell"))
    await reclaim(world, 0, deadline_seconds=300)
    name = ids.scheduler_id(world.run)
    await blocked(world, name)
    shown = await world.shown(name)
    assert "**record_core** failed for good: Fenced: it went to another cell" in shown
    assert f"--workflow-id {name} --name resolve_step" in shown
    assert (await (await world.start_burst(policy=EAGER)).result()).version == 1
    state = await world.state()
    assert (state.core, indices(state), world.combined) == (1, [0, 1], batches(world, 1))
    await world.scheduler.execute_update("resolve_step", resolution)
    await world.until(lambda state: indices(state) == [1])
    assert len(world.hand_overs) == (resolution is Resolution.RETRY)
    await world.whole_ledger()
    told = [entry.reasons for entry in world.noted("alarm") if entry.reasons[0] == "record cell 1 as the core"]
    assert len(told) == (resolution is not Resolution.RETRY)


async def test_a_core_whose_burst_ends_over_the_hand_over_leaves_from_training(make_world):
    """It does not serve for a moment first; the burst is over without it."""
    world = await make_world((4, 4, 4))
    over = False
    world.faults.add("take_core", until=lambda: over)
    world.may_finish = lambda cell: False
    burst = await world.start_burst(groups_per_step=4, policy=EAGER)
    await world.eventually(lambda: world.cells[0].held)
    await reclaim(world, 0, deadline_seconds=300)
    world.may_finish = lambda cell: True
    state = await world.until(lambda state: state.weights.version == 1)
    assert (state.core, state.cells[0].role) == (0, CellRole.TRAINING)
    over = True
    assert (await burst.result()).version == 1
    state = await world.until(lambda state: indices(state) == [1, 2])
    assert 0 not in [cell for cell, _ in moved(world, "to_rollout")]
    (retired,) = [move for move in world.transitions if move.direction == "retire"]
    assert [step.name for step in retired.steps] == ["lay-down-core", "leave-stream", "release-training"]
    await world.until(world.all_serving)


async def test_a_core_that_nobody_takes_returns_when_its_burst_ends(world: FakeWorld):
    world.faults.add("take_core", error=ActorUnavailable("dead"), times=None)
    world.may_finish = lambda cell: False
    burst = await world.start_burst(groups_per_step=4, policy=EAGER)
    await world.eventually(lambda: world.cells[0].held)
    await reclaim(world, 0, deadline_seconds=300)
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 1
    await world.until(world.all_serving)
    assert (0, TransitionResult.DONE) in moved(world, "to_rollout")


async def test_a_hand_over_that_hangs_past_its_deadline_is_told(make_world):
    """Once, with the step it hangs at, which is shown as it goes on: first of the heir. The burst goes on."""
    world = await make_world((4, 4, 4))
    taken = gone = False
    world.faults.add("take_core", until=lambda: taken, times=None)
    world.faults.add("lay_down_core", until=lambda: gone, times=None)
    world.harness_seconds = lambda spec: 1000.0 if spec.group < 2 else 0.0
    burst = await world.start_burst(groups_per_step=6, policy={"hold_seconds": 0, "supply_fraction": 1})
    await world.until(lambda state: len(state.accounts.roster) == 4)
    await reclaim(world, 0, deadline_seconds=300)
    await world.eventually(lambda: world.called("take_core"))
    await reclaim(world, 0, deadline_seconds=0)
    state = await world.until(lambda state: state.cells[0].late)
    assert state.cells[0].late.startswith("it is the core, and cell 1 was asked to take over at 2")
    assert "; cell 1: take_core, attempt " in state.cells[0].late
    shown = await world.shown(ids.scheduler_id(world.run))
    assert "| late | cell 0 is not gone at its deadline: it is the core, and cell 1 was asked to take over" in shown
    world.harness_seconds = lambda spec: 0.0
    await world.until(lambda state: state.accounts.finished == 12)
    taken = True
    await world.until(lambda state: state.core == 1 and "cell 0: lay_down_core, attempt" in state.cells[0].late)
    elastic = await ask(world.scheduler, "elasticity", Elasticity)
    assert set(elastic.late) == {0}
    gone = True
    assert (await burst.result()).version == 1
    await world.until(lambda state: indices(state) == [1, 2])
    assert "| late |" not in await world.shown(ids.scheduler_id(world.run))
    await world.whole_ledger()
    (told,) = [entry for entry in world.noted("alarm") if entry.reasons[0] == "late"]
    assert told.cell == 0
    assert "take_core" in told.reasons[1]
    assert "it was to be gone by 2" in told.reasons[1]
    assert world.combined == batches(world, 1)
