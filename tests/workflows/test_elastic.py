"""The fleet grows and shrinks while a burst runs: offers and reclaims, refused with the field named, nothing lost."""

from collections import Counter

import pytest
from temporalio.client import WorkflowUpdateFailedError

from infra.temporal.client import ask
from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld
from workflows.messages import ids
from workflows.messages.errors import Fenced
from workflows.messages.fleet import COULD_NOT_LEAVE, CellRole, CellSpec, Elasticity, OfferCell, ReclaimCell
from workflows.messages.policies import Bounds
from workflows.messages.transition import TransitionResult

pytestmark = pytest.mark.timeout(400)


async def offer(world: FakeWorld, index: int, slots: int = 4) -> str:
    cell = CellSpec(index=index, engine="paced", slots=slots)
    return await world.scheduler.execute_update("offer_cell", OfferCell(cell=cell))


async def reclaim(world: FakeWorld, cell: int, deadline_seconds: float = 100) -> str:
    return await world.scheduler.execute_update(
        "reclaim_cell", ReclaimCell(cell=cell, deadline_seconds=deadline_seconds)
    )


async def refused(answer) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await answer
    return str(caught.value.cause)


def indices(state) -> list[int]:
    return [entry.spec.index for entry in state.cells]


def micro_steps(world: FakeWorld) -> Counter[int]:
    return Counter(done.cell for commit in world.commits.values() for done in commit.accepted)


async def test_an_offered_cell_serves_and_trains(world: FakeWorld):
    world.harness_seconds = lambda spec: 1000.0
    burst = await world.start_burst(groups_per_step=5, policy={"hold_seconds": 0, "supply_fraction": 0})
    await world.until(lambda state: len(state.accounts.roster) == 8)
    assert "joins when its worker has booted" in await offer(world, 2)
    await world.boot(2)
    await world.until(lambda state: len(state.accounts.roster) == 10)
    assert "is in the run" in await offer(world, 2)
    assert "differs" in await refused(offer(world, 2, slots=5))
    assert "cell.index: the next one is 3" in await refused(offer(world, 7))
    world.may_finish = lambda cell: False
    world.harness_seconds = lambda spec: 0.0
    await world.until(lambda state: state.cells[2].role is CellRole.TRAINING)
    await world.eventually(lambda: world.cells[2].held)
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 1
    assert set(micro_steps(world)) == {0, 1, 2}
    await world.until(world.all_serving)


async def test_a_serving_cell_is_reclaimed_in_mid_burst(make_world):
    """It drains when the others have room for what is out; counters stay exact, its workflow ends."""
    world = await make_world((4, 4, 4))
    world.harness_seconds = lambda spec: 1000.0 if spec.group == 0 else 0.0
    async with watching(world) as seen:
        burst = await world.start_burst(groups_per_step=6, policy={"name": "async", "split": 1})
        await world.until(lambda state: state.cells[0].role is CellRole.TRAINING)
        assert "leaves within" in await reclaim(world, 2)
        await world.until(lambda state: indices(state) == [0, 1])
        assert "has left the run" in await reclaim(world, 2)
        world.harness_seconds = lambda spec: 0.0
        report = await burst.result()
    assert (report.version, report.steps[0].groups_with_signal, seen[-1]) == (1, 6, (12, 12, 12))
    names = [step.name for move in world.transitions if move.direction == "retire" for step in move.steps]
    assert names[:1] == ["reroute-executions"]
    assert names[-1:] == ["release-rollout"]
    assert world.doors[2] is None
    await world.retired(2)
    await world.whole_ledger()
    told = [entry.reasons[0] for entry in world.noted("fleet")]
    assert told == ["reclaimed", "left"]
    assert "joins" in await offer(world, 2)
    await world.boot(2)
    await world.until(lambda state: world.all_serving(state) and indices(state) == [0, 1, 2])


async def test_a_training_cell_is_reclaimed_in_mid_batch(world: FakeWorld):
    """Its deadline comes before the batch ends: what it accumulated is computed again, every micro-step counts once."""
    world.may_finish = lambda cell: cell.index == 1
    burst = await world.start_burst(groups_per_step=4, policy={"hold_seconds": 0, "supply_fraction": 0})
    await world.until(lambda state: state.cells[1].role is CellRole.TRAINING)
    await world.eventually(lambda: world.cells[1].accumulated)
    did = set(world.cells[1].accumulated)
    await reclaim(world, 1, deadline_seconds=0)
    await world.until(lambda state: indices(state) == [0])
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 1
    (commit,) = world.commits.values()
    assert {done.cell for done in commit.accepted} == {0}
    assert did <= {done.index for done in commit.accepted}
    assert [done.index for done in commit.accepted] == list(range(8))
    await world.until(world.all_serving)


async def test_with_time_left_a_training_cell_stays_until_the_batch_is_over(world: FakeWorld):
    world.may_finish = lambda cell: cell.index == 1
    burst = await world.start_burst(groups_per_step=4, policy={"hold_seconds": 0, "supply_fraction": 0})
    await world.eventually(lambda: 1 in world.cells and world.cells[1].accumulated)
    await reclaim(world, 1, deadline_seconds=300)
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 1
    assert micro_steps(world)[1] > 0
    await world.until(lambda state: indices(state) == [0])


async def test_what_cannot_be_reclaimed_is_refused_and_named(make_world):
    world = await make_world((4, 4), bounds=Bounds(min_rollout_cells=1), max_cells=2)
    assert "cell: the fleet's bounds need 2 cells" in await refused(reclaim(world, 0))
    assert "cell: the run has no cell 5, it has 0, 1" in await refused(reclaim(world, 5))
    assert "cell: the fleet's bounds need 2 cells" in await refused(reclaim(world, 1))
    assert "2 cells at most" in await refused(offer(world, 2))
    elastic = await ask(world.scheduler, "elasticity", Elasticity)
    assert (elastic.min_cells, elastic.max_cells, elastic.next_index, elastic.reclaimable) == (2, 2, 2, ())
    await (await world.start_burst()).result()
    elastic = await ask(world.scheduler, "elasticity", Elasticity)
    assert elastic.costs["to_training"].count == 1
    assert elastic.costs["to_training"].mean_seconds > 0
    assert "to training" in await world.shown(ids.scheduler_id(world.run))


async def test_a_parked_cell_can_be_reclaimed(world: FakeWorld):
    world.faults.add("load_weights", error=Fenced("broken"), when=lambda request: request.cell == 1, times=None)
    await (await world.start_burst()).result()
    await world.until(lambda state: state.cells[1].role is CellRole.PARKED)
    await reclaim(world, 1)
    await world.until(lambda state: indices(state) == [0])
    await world.retired(1)


async def test_a_reclaimed_cell_that_cannot_leave_is_let_go_at_its_deadline(world: FakeWorld):
    """It tries, serves on, tries once more at the deadline; then it is gone, its door closed, and nothing frozen."""
    fault = world.faults.add("await_quiet", error=Fenced("dead"), times=None, when=lambda request: request.cell == 1)
    await reclaim(world, 1, deadline_seconds=300)
    state = await world.until(lambda state: state.cells[-1].reason.startswith(COULD_NOT_LEAVE))
    assert (state.cells[1].role, world.doors[1]) == (CellRole.ROLLOUT, 0)
    await reclaim(world, 1, deadline_seconds=0)
    state = await world.until(lambda state: indices(state) == [0])
    assert fault.hits == 2
    assert world.doors[1] is None
    assert (state.mode.frozen, state.mode.failed, state.cooldown_until, state.pending) == (False, 0, 0.0, ())
    retired = [move.result for move in world.transitions if move.direction == "retire"]
    assert retired == [TransitionResult.ROLLED_BACK, TransitionResult.DONE]
    await world.whole_ledger()
    assert "at its deadline, unfinished" in world.noted("fleet")[-1].reasons[1]
    await world.retired(1)


async def test_a_drain_that_is_late_is_told(world: FakeWorld):
    """A satellite that serves, and hangs where it lives and beats."""
    released = False
    world.faults.add("release_rollout", until=lambda: released, times=None)
    await reclaim(world, 1, deadline_seconds=300)
    await world.eventually(lambda: world.called("release_rollout"))
    await reclaim(world, 1, deadline_seconds=0)
    state = await world.until(lambda state: state.cells[1].late)
    assert state.cells[1].late.startswith("it is retiring, asked at 2")
    assert "; cell 1: release_rollout, attempt " in state.cells[1].late
    await world.whole_ledger()
    (told,) = world.noted("alarm")
    assert (told.cell, told.reasons[0], "release_rollout" in told.reasons[1]) == (1, "late", True)
    released = True
    await world.until(lambda state: indices(state) == [0])
    await world.whole_ledger()
    assert len(world.noted("alarm")) == 1


async def test_a_reclaimed_cell_whose_workflow_is_gone_has_left(world: FakeWorld):
    await world.handle(ids.cell_workflow_id(world.run, 1)).terminate()
    await reclaim(world, 1, deadline_seconds=0)
    state = await world.until(lambda state: indices(state) == [0])
    assert (state.reclaimed, state.pending) == ((1,), ())
    await world.whole_ledger()
    assert world.noted("fleet")[-1].reasons[0] == "left"
    assert len(world.noted("return")) == 1
    assert (await (await world.start_burst()).result()).version == 1
