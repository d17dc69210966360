"""Reboot, the fallback of every role change: it heals what only a new boot can, once; then somebody is asked."""

import pytest

from tests.workflows.test_cells import ends, parked
from tests.workflows.world import FakeWorld
from workflows.messages import ids
from workflows.messages.errors import Fenced
from workflows.messages.transition import Direction, Resolution, TransitionResult

pytestmark = pytest.mark.timeout(400)

DONE, PARKED, REBOOTED = TransitionResult.DONE, TransitionResult.PARKED, TransitionResult.REBOOTED


@pytest.mark.parametrize("answers", [True, False])
async def test_a_cell_that_fails_its_switch_in_this_boot_is_healed_by_the_next(make_world, answers: bool):
    """Also where the next boot is there before the word that this one has ended."""
    world: FakeWorld = await make_world(reboots=True)
    if not answers:
        world.faults.add("reboot_cell", hang=True, after=True)
    world.faults.add("restore_training", error=Fenced("stuck"), times=None, when=lambda _: world.boots[0] == 1)
    assert (await (await world.start_burst()).result()).version == 1
    state = await world.until(world.all_serving)
    assert ends(world, Direction.TO_TRAINING) == [REBOOTED, DONE]
    assert ends(world, Direction.BOOT) == [DONE, DONE]
    assert (state.cells[0].boot_epoch, state.mode.failed) == (2, 0)
    first, second = (one for one in world.transitions if (one.direction, one.cell) == (Direction.TO_TRAINING, 0))
    assert [(step.name, step.ok) for step in first.steps[-2:]] == [("restore-training", False), ("reboot-cell", True)]
    assert set(first.verbs[-2:]) == {"rollout reboot", "training reboot"}
    assert second.verbs == ("rollout suspend", "training resume")
    await world.eventually(lambda: world.noted("reboot"))
    (entry,) = world.noted("reboot")
    assert (entry.cell, entry.reasons) == (0, ("starting: reboots: restore-training: Fenced: stuck",))
    assert not [entry for entry in world.noted("alarm") if entry.cell == 0]


async def test_where_a_reboot_does_not_help_the_cell_parks_and_the_operator_decides(make_world):
    world: FakeWorld = await make_world(reboots=True)
    fault = world.faults.add("restore_training", error=Fenced("broken"), times=None)
    burst = await world.start_burst()
    assert "broken" in await parked(world, 0)
    assert ends(world, Direction.TO_TRAINING) == [REBOOTED, PARKED]
    assert (await world.state()).mode.failed == 2
    fault.times = 0
    await world.resolve(ids.cell_workflow_id(world.run, 0), Resolution.RETRY)
    assert (await burst.result()).version == 1
    assert world.boots[0] == 2


async def test_a_boot_that_cannot_be_ended_parks_the_cell(make_world):
    world: FakeWorld = await make_world(reboots=True)
    world.faults.add("restore_training", error=Fenced("broken"))
    world.faults.add("reboot_cell", error=Fenced("not by this lease"))
    burst = await world.start_burst()
    shown = await parked(world, 0)
    assert "broken" in shown
    assert "the reboot failed too" in shown
    await world.boot(0)
    assert (await burst.result()).version == 1
