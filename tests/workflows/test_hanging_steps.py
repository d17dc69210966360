"""Case 43: whichever step of a role change hangs, in a worker that lives on and says nothing, the change goes on."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from tests.workflows.faults import Fault
from tests.workflows.world import FakeWorld
from workflows.messages import ids
from workflows.messages.transition import Direction, TransitionReport, TransitionResult, TransitionSpec
from workflows.transition import RoleTransition

pytestmark = pytest.mark.timeout(400)

THERE = (
    "reroute_executions",
    "retain_kv",
    "cancel_requests",
    "await_quiet",
    "pull_kv",
    "announce_handoff",
    "release_kv",
    "release_rollout",
    "restore_training",
)
BACK = ("leave_stream", "release_training", "resume_rollout", "load_weights", "verify_engine", "change_door")
PLACES = [*((Direction.TO_TRAINING, step) for step in THERE), *((Direction.TO_ROLLOUT, step) for step in BACK)]
UNDISTURBED = len(PLACES) + 1
"""The cell whose change nothing disturbs. Cell 0 stays and takes what others lose; each of these hangs at one place."""


def concerns(argument: Any, cell: int) -> bool:
    """Whether a step is one of the changes of `cell`."""
    if hasattr(argument, "source_cell"):
        return argument.source_cell == cell
    if isinstance(lease := getattr(argument, "lease", None), str):
        return lease.split("/")[1] == str(cell)
    return getattr(argument, "cell", None) == cell or getattr(argument, "engine", "") == ids.engine_id(cell)


def hang(world: FakeWorld, cell: int, step: str) -> Fault:
    """The step never answers, in a change of this test, the first time it is tried."""
    return world.faults.add(step, hang=True, when=lambda argument: concerns(argument, cell))


def called(world: FakeWorld, cell: int) -> list[str]:
    """The steps of its changes, without the record of each."""
    return [name for name, argument in world.calls if concerns(argument, cell) and name != "record_transition"]


async def begun(world: FakeWorld, cell: int, direction: Direction) -> WorkflowHandle[Any, TransitionReport]:
    lease = world.cells[cell].highest_lease + 1
    spec = TransitionSpec(
        run=world.run,
        cell=world.specs[cell],
        lease=lease,
        boot_epoch=world.boots[cell],
        queue=world.cells[cell].queue,
        engine_url="http://127.0.0.1:9",
        direction=direction,
        weights=world.committed,
        peers={ids.engine_id(0): world.cells[0].queue},
    )
    name = f"{world.run}/transition/cell-{cell}/{lease}"
    return await world.client.start_workflow(RoleTransition.run, spec, id=name, task_queue=ids.WORKFLOW_QUEUE)


@pytest.fixture
async def world(make_world) -> FakeWorld:
    """A cell for every place to hang at; every engine has an execution that goes on elsewhere."""
    world = await make_world((4,) * (UNDISTURBED + 1))
    world.running = lambda: ["an-execution"]
    world.calls.clear()
    return world


async def test_a_step_that_hangs_anywhere_is_given_out_again(world: FakeWorld):
    faults = {cell: hang(world, cell, step) for cell, (_, step) in enumerate(PLACES, start=1)}

    async def there_and_back(cell: int) -> list[TransitionReport]:
        directions = (Direction.TO_TRAINING, Direction.TO_ROLLOUT)
        return [await (await begun(world, cell, direction)).result() for direction in directions]

    reports = await asyncio.gather(*(there_and_back(cell) for cell in range(1, UNDISTURBED + 1)))
    assert [report for both in reports for report in both if report.result is not TransitionResult.DONE] == []
    assert called(world, UNDISTURBED) == [step for _, step in PLACES], "every step there is has its place here"
    for cell, (_, step) in enumerate(PLACES, start=1):
        assert faults[cell].hits == 1, step
        assert sorted(called(world, cell)) == sorted([step, *called(world, UNDISTURBED)])
        assert (world.doors[cell], world.cells[cell].engine) == (world.committed.version, world.committed), step


async def test_a_newer_boot_ends_a_change_that_hangs_anywhere(world: FakeWorld):
    async def ended(cell: int, direction: Direction, step: str) -> TransitionReport:
        if direction is Direction.TO_ROLLOUT:
            await (await begun(world, cell, Direction.TO_TRAINING)).result()
        fault = hang(world, cell, step)
        change = await begun(world, cell, direction)
        await world.eventually(lambda: fault.hits)
        await change.signal(RoleTransition.supersede)
        return await change.result()

    reports = await asyncio.gather(*(ended(cell, *place) for cell, place in enumerate(PLACES, start=1)))
    assert {report.result for report in reports} == {TransitionResult.SUPERSEDED}
    closed = {cell: world.doors[cell] is None for cell, _ in enumerate(PLACES, start=1)}
    assert closed == {cell: step != THERE[0] for cell, (_, step) in enumerate(PLACES, start=1)}, (
        "the first one closes it"
    )
