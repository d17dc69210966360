"""A publish is acknowledged only when every engine that may serve has shown, by checksum, the weights it holds."""

import asyncio

import pytest

from tests.workflows.world import FakeWorld
from workflows.messages import ids
from workflows.messages.errors import VersionMismatch
from workflows.messages.transition import Resolution

pytestmark = pytest.mark.timeout(400)


def of_version(version: int, *cells: int):
    return lambda request: request.weights.version == version and request.cell in cells


async def test_an_engine_with_other_weights_serves_nothing_and_is_named(world: FakeWorld):
    """It says it loaded the version; its checksum is another."""
    fault = world.faults.add("verify_engine", error=VersionMismatch("other weights"), times=None, when=of_version(1, 1))
    report = await (await world.start_burst()).result()
    assert report.version == 1
    state = await world.state()
    assert [cell.role for cell in state.cells] == ["rollout", "parked"]
    assert world.doors[1] is None
    fault.times = 0
    await world.resolve(ids.cell_workflow_id(world.run, 1), Resolution.RETRY)
    await world.until(world.all_serving)


async def test_without_any_verified_engine_nothing_is_acknowledged(world: FakeWorld):
    fault = world.faults.add(
        "verify_engine", error=VersionMismatch("other weights"), times=None, when=of_version(1, 0, 1)
    )
    burst = await world.start_burst()
    await world.until(lambda state: [cell.role for cell in state.cells] == ["parked", "parked"])
    state = await world.state()
    assert state.burst is not None, "the burst waits for an engine"
    assert world.published == []
    assert all(door is None for door in world.doors.values())
    fault.times = 0
    await world.resolve(ids.cell_workflow_id(world.run, 0), Resolution.RETRY)
    assert (await burst.result()).version == 1
    await world.eventually(lambda: world.published == [1])


async def test_a_checksum_that_cannot_be_had_holds_the_publish_back(world: FakeWorld):
    """The engine does not answer for a while: loaded is not verified."""
    answers = asyncio.Event()
    fault = world.faults.add("verify_engine", times=None, until=answers.is_set, when=of_version(1, 1))
    burst = await world.start_burst()
    await world.eventually(lambda: fault.hits)
    state = await world.until(lambda state: state.cells[0].version == 1)
    assert state.publishing, "the burst waits for the other engine"
    assert world.published == []
    answers.set()
    assert (await burst.result()).version == 1
    await world.eventually(lambda: world.published == [1])


async def test_a_core_that_stays_returns_when_no_other_cell_can_show_the_version(world: FakeWorld):
    """It trains on for the burst that follows, but the burst that ends would wait for ever for an engine."""
    world.faults.add("verify_engine", error=VersionMismatch("other weights"), times=None, when=of_version(1, 1))
    burst = await world.start_burst(follows=True, policy={"name": "async", "split": 1})
    assert (await burst.result()).version == 1
    state = await world.until(lambda state: state.cells[0].role == "rollout")
    await world.whole_ledger()
    assert (state.cells[1].role, state.staying) == ("parked", ())
    told = [(entry.kind, entry.reasons[0]) for entry in world.ledger.values() if entry.cell == 0]
    assert ("stay", "split") in told
    assert ("return", "no other cell serves") in told
