"""Safe mode, live: entered by what goes wrong or by an operator, training goes on, left by an operator alone."""

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.workflows.world import FakeWorld
from workflows.messages import ids
from workflows.messages.errors import Fenced
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction, TransitionResult
from workflows.policy.safe_mode import Cause

pytestmark = pytest.mark.timeout(400)

QUICK = {"low_seconds": 0, "settle_seconds": 0, "least_windows": 1, "sample_seconds": 0.3}


async def refused(world: FakeWorld, update: str, reason: str) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await world.scheduler.execute_update(update, reason)
    return str(caught.value.cause)


async def test_a_cell_that_always_fails_its_switch(world: FakeWorld):
    """Cases 36, 43: the satellite fails again and again; its last place is frozen, the core trains on."""
    fault = world.faults.add("reroute_executions", error=Fenced("no"), times=None, when=lambda r: r.engine == "cell-1")
    world.may_finish = lambda cell: False
    policy = {"hold_seconds": 0, "supply_fraction": 0, "cooldown_seconds": 0.2, "safe_mode": {"failed_moves": 2}}
    burst = await world.start_burst(groups_per_step=4, steps=2, policy=policy)
    state = await world.until(lambda state: state.mode.frozen)
    assert (state.mode.cause, state.mode.split) == (Cause.FAILED_MOVES, 1)
    assert [report.result for report in world.transitions if report.cell == 1][-2:] == [
        TransitionResult.ROLLED_BACK
    ] * 2
    hits = fault.hits
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 2
    assert fault.hits == hits, "nobody tried again"
    await world.whole_ledger()
    (entered,) = world.noted("safe_mode")
    assert entered.reasons == ("entered", "failed_moves: 2 moves failed in a row")
    assert "safe mode" in await world.shown(ids.scheduler_id(world.run))
    assert "in safe mode already" in await refused(world, "enter_safe_mode", "again")
    assert "say why" in await refused(world, "leave_safe_mode", " ")
    fault.times = 0
    await world.scheduler.execute_update("leave_safe_mode", "cell 1 has a new cable")
    assert "not in safe mode" in await refused(world, "leave_safe_mode", "twice")
    assert not (await world.state()).mode.frozen
    world.may_finish = lambda cell: False
    second = await world.start_burst("second", groups_per_step=4, policy=policy)
    await world.until(lambda state: state.cells[1].role is CellRole.TRAINING)
    world.may_finish = lambda cell: True
    await second.result()


def helped(world: FakeWorld) -> bool:
    """Whether every cell of a move that promised something trains."""
    promised = [entry for entry in world.noted("move") if entry.expected_gain_seconds is not None]
    there = {move.cell for move in world.transitions if move.direction is Direction.TO_TRAINING}
    return any({entry.cell, *entry.together} <= there for entry in promised)


async def test_a_lying_predictor(make_world):
    """Cells say that micro-steps take forever: more of them are promised to help, and do not."""
    world = await make_world((4, 4, 4, 4))
    world.told_seconds = lambda seconds: 100.0
    # After the first update the next one waits until what was promised to help is there: then it can be judged.
    world.may_finish = lambda cell: not world.commits or helped(world)
    policy = {"name": "throughput", "throughput": QUICK, "safe_mode": {"predictions": 1, "prediction_error": 0.5}}
    burst = await world.start_burst(steps=8, policy=policy)
    state = await world.until(lambda state: state.mode.frozen)
    assert state.mode.cause in (Cause.WRONG_PREDICTOR, Cause.REGRETTED_MOVES)
    assert (await burst.result()).version == 8
    await world.whole_ledger()
    outcome = world.noted("outcome")[0]
    assert outcome.expected_gain_seconds > 10
    assert outcome.realised_gain_seconds < outcome.expected_gain_seconds / 2
    assert outcome.about in {entry.token for entry in world.noted("move")}
    after = [entry for entry in world.noted("move") if entry.at > world.noted("safe_mode")[0].at]
    assert after == []
    await world.scheduler.execute_update("leave_safe_mode", "the clocks are set right")
    assert not (await world.state()).mode.frozen


async def test_telemetry_that_does_not_come(make_world):
    world = await make_world((4, 4, 4))
    world.faults.add("measure_pipeline", hang=True, times=None)
    world.harness_seconds = lambda spec: 1000.0
    policy = {"name": "throughput", "throughput": QUICK, "safe_mode": {"stale_seconds": 1}}
    burst = await world.start_burst(policy=policy)
    state = await world.until(lambda state: state.mode.frozen)
    assert state.mode.cause is Cause.STALE_TELEMETRY
    world.harness_seconds = lambda spec: 0.0
    assert (await burst.result()).version == 1


async def test_an_operator_freezes_and_releases(world: FakeWorld):
    said = await world.scheduler.execute_update("enter_safe_mode", "maintenance of the switch")
    assert said == "safe mode: at least 1 cell trains from now on"
    world.harness_seconds = lambda spec: 1000.0
    burst = await world.start_burst(groups_per_step=4)
    state = await world.until(lambda state: state.cells[0].role is CellRole.TRAINING)
    world.harness_seconds = lambda spec: 0.0
    assert (state.mode.cause, state.cells[1].role) == (Cause.OPERATOR, CellRole.ROLLOUT)
    assert (await burst.result()).version == 1
    await world.whole_ledger()
    assert {entry.cell for entry in world.noted("move")} == {0}
    await world.scheduler.execute_update("leave_safe_mode", "done")
    await world.eventually(lambda: [entry.reasons[0] for entry in world.noted("safe_mode")] == ["entered", "left"])


async def test_a_cell_that_was_on_its_way_when_it_was_frozen_goes_back_between_batches(world: FakeWorld):
    """The last valid allocation had the core alone in training; the next batch opens with that one."""
    frozen: list[str] = []
    world.may_finish = lambda cell: False
    world.faults.add("restore_training", when=lambda request: request.cell == 1, until=lambda: frozen)
    back = lambda: [entry for entry in world.noted("return") if entry.cell == 1]  # noqa: E731
    world.faults.add("record_batch_opened", times=None, when=lambda opened: opened.step == 1, until=back)
    policy = {"hold_seconds": 0, "supply_fraction": 0}
    burst = await world.start_burst(groups_per_step=4, steps=2, policy=policy)
    await world.until(lambda state: state.cells[1].role is CellRole.TO_TRAINING)
    await world.scheduler.execute_update("enter_safe_mode", "a look at the switch")
    frozen.append("now")
    await world.until(lambda state: state.cells[1].role is CellRole.TRAINING)
    world.may_finish = lambda cell: True
    assert (await burst.result()).version == 2
    await world.whole_ledger()
    assert back()[0].reasons[0] == "split"
    assert "safe mode" in back()[0].reasons[1]
    assert back()[0].state["batch"] is None
