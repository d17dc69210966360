"""The stream under loss: every micro-step counts once, whoever computed it."""

import pytest

from tests.workflows.world import FakeWorld
from workflows.messages import ids
from workflows.messages.errors import ActorUnavailable, Fenced, TransferFailed

pytestmark = pytest.mark.timeout(400)

WIDE = {"groups_per_step": 4, "policy": {"hold_seconds": 0, "supply_fraction": 0, "in_flight_depth": 1}}
"""Enough groups, claimed one after the other, that a satellite joins."""


async def both_train(world: FakeWorld):
    """A burst with core and satellite in training, each with one micro-step in its sum and held at the next one."""
    world.micro_steps, world.may_finish = 3, lambda cell: not cell.accumulated
    burst = await world.start_burst(**WIDE)
    await world.eventually(lambda: all(world.cells[cell].accumulated and world.cells[cell].held for cell in (0, 1)))
    return burst


def go_on(world: FakeWorld) -> None:
    world.may_finish = lambda cell: True


def emissions(world: FakeWorld) -> list[int]:
    return sorted(task.micro_step.index for task in world.called("run_micro_step"))


async def committed(world: FakeWorld, burst) -> dict[str, int]:
    """The burst's only step: twelve micro-steps, each once (the world checks which). Cell -> what it counts for."""
    go_on(world)
    report = await burst.result()
    assert report.version == 1
    assert sum(report.steps[0].cells.values()) == 12
    return report.steps[0].cells


@pytest.mark.essential
async def test_core_and_satellite_share_a_batch(world: FakeWorld):
    cells = await committed(world, await both_train(world))
    assert sorted(cells) == ["0", "1"]
    assert emissions(world) == list(range(12))


async def test_a_satellite_that_reboots_loses_its_micro_steps_and_they_are_done_again(world: FakeWorld):
    burst = await both_train(world)
    lost = len(world.cells[1].accumulated)
    await world.boot(1)
    await committed(world, burst)
    assert len(emissions(world)) >= 12 + lost


async def test_the_core_reboots_in_the_stream(world: FakeWorld):
    burst = await both_train(world)
    await world.boot(0)
    await committed(world, burst)


async def test_a_failed_combine_waits_until_everyone_is_back(world: FakeWorld):
    """The core is back first; combining then would commit the satellite's micro-steps without their gradient."""
    world.faults.add("combine_update", error=TransferFailed("torn"), times=3)
    world.faults.add("join_batch", delay_seconds=3.0, times=None, when=lambda request: request.cell == 1)
    cells = await committed(world, await both_train(world))
    assert cells["1"] > 0
    assert emissions(world) == list(range(12))


async def test_combines_that_go_on_failing_make_everyone_compute_again(world: FakeWorld):
    world.faults.add("combine_update", error=Fenced("something is wrong"), times=2)
    burst = await both_train(world)
    await committed(world, burst)
    assert len(emissions(world)) >= 24


async def test_a_satellite_that_cannot_come_back_is_done_without(world: FakeWorld):
    burst = await both_train(world)
    world.faults.add("combine_update", error=TransferFailed("torn"), times=3)
    world.faults.add("join_batch", error=Fenced("gone"), times=None, when=lambda request: request.cell == 1)
    cells = await committed(world, burst)
    assert cells == {"0": 12}


async def test_the_core_is_lost_while_it_combines(world: FakeWorld):
    burst = await both_train(world)
    world.faults.add("combine_update", hang=True)
    go_on(world)
    await world.eventually(lambda: world.called("combine_update"), seconds=200)
    await world.boot(0)
    await committed(world, burst)
    assert len(world.called("combine_update")) == 2


async def test_an_account_that_differs_voids_the_whole_gradient_of_its_cell(world: FakeWorld):
    """A timed-out attempt that was summed after all: nothing of that cell counts, nothing is summed twice."""

    def tamper(request) -> bool:
        if request.cell == 1:
            world.cells[1].accumulated[0] = 99
        return False

    fault = world.faults.add("seal_batch", when=tamper)
    burst = await both_train(world)
    go_on(world)
    await world.eventually(lambda: world.called("seal_batch"), seconds=200)
    await world.eventually(lambda: [r for r in world.called("release_batch") if r.discard and r.cell == 1], seconds=200)
    fault.times = 0
    await committed(world, burst)
    assert len(emissions(world)) > 12


async def test_a_micro_step_whose_answer_is_lost_counts_once(make_world):
    """The same cell is asked again and knows it has it."""
    world = await make_world((8,))
    world.micro_steps = 3
    world.faults.add("run_micro_step", error=ActorUnavailable("no answer"), after=True, times=2)
    assert await committed(world, await world.start_burst(**WIDE)) == {"0": 12}
    assert len(emissions(world)) == 14


async def test_a_lost_answer_that_another_cell_repeats_counts_once(world: FakeWorld):
    """The first cell's account then holds what did not count there, so its whole gradient is computed again."""
    burst = await both_train(world)
    world.faults.add("run_micro_step", error=ActorUnavailable("no answer"), after=True, times=2)
    await committed(world, burst)
    assert len(emissions(world)) >= 14


@pytest.mark.slow
async def test_a_satellite_dies_and_does_not_come_back(world: FakeWorld):
    """Its heartbeats and its queue time out; the batch ends without it, and so does the burst."""
    burst = await both_train(world)
    await world.cells[1].die()
    go_on(world)
    report = await burst.result()
    assert report.steps[0].cells == {"0": 12}
    state = await world.state()
    assert state.cells[1].role == "parked"


async def test_a_batch_is_abandoned_with_an_empty_stream(world: FakeWorld):
    world.faults.add("record_batch_opened", delay_seconds=60)
    burst = await world.start_burst(groups_per_step=2)
    await world.eventually(lambda: world.called("record_batch_opened"))
    await world.handle(ids.batch_id(world.run, "first", 0)).cancel()
    with pytest.raises(Exception, match="failed"):
        await burst.result()
    world.faults.clear()
    assert (await (await world.start_burst("second")).result()).version == 1
