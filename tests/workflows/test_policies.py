"""Every policy live: chosen by name, carried out, in both directions, with and without streaming."""

import hashlib
from collections import Counter
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld
from workflows.messages.execution import ExecutionSpec
from workflows.messages.transition import Direction
from workflows.policy.registry import POLICIES

pytestmark = pytest.mark.timeout(400)

UNSWEPT = {"sweep_seconds": 10_000.0}
"""Nobody looks again later: whatever the Scheduler waits for has to wake it."""
EAGER = {"low_seconds": 0, "settle_seconds": 0, "least_windows": 1, "sample_seconds": 0.3, "horizon_iterations": 20}


def departures(world: FakeWorld, direction: Direction) -> Counter[int]:
    return Counter(report.cell for report in world.transitions if report.direction is direction)


@pytest.mark.parametrize("name", sorted(POLICIES))
async def test_a_campaign_under_every_policy(make_world, name: str):
    """Counters are exact, every batch trains its groups once, and whoever left is back at the end."""
    world = await make_world((4, 4, 4), **UNSWEPT)
    policy = {"name": name, "hold_seconds": 0, "split": 2, "throughput": EAGER}
    async with watching(world) as seen:
        reports = await world.run_campaign(bursts=2, steps=2, staleness=1.0, policy=policy)
    assert [report.version for report in reports] == [2, 4]
    assert seen[-1][0] == seen[-1][1] == seen[-1][2] == 8 + 4 * 2
    assert len(world.commits) == 4
    assert reports[0].expected_staleness == 1.0
    state = await world.until(world.all_serving)
    assert (state.burst, state.batch, state.accounts.roster, state.pending) == (None, None, {}, ())
    assert {report.result for report in world.transitions} == {"done"}
    assert departures(world, Direction.TO_TRAINING) == departures(world, Direction.TO_ROLLOUT)
    await world.whole_ledger()
    moves = world.noted("move")
    assert {entry.policy for entry in moves} == {name}
    match name:
        case "async":  # the split stays over the burst's end
            assert departures(world, Direction.TO_TRAINING) == {0: 1, 1: 1}
            assert {entry.cell for entry in world.noted("stay")} == {0, 1}
        case "colocate":  # the whole pool, each time
            assert departures(world, Direction.TO_TRAINING) == {0: 2, 1: 2, 2: 2}
            assert [(entry.cell, entry.together) for entry in moves] == [(0, (1, 2))] * 2
        case "throughput":
            assert departures(world, Direction.TO_TRAINING)[0] == 1
        case _:
            assert departures(world, Direction.TO_TRAINING)[0] >= 1


async def test_without_streaming_nothing_is_trained_before_the_batch_is_complete(world: FakeWorld):
    late = {"policy": {"name": "async", "split": 1, "streaming": False}, "groups_per_step": 3}

    def held(spec: ExecutionSpec) -> bool:
        """Until the core has joined and the other groups are ready: all that a stream would wait for."""
        return spec.group == 1 and not (len(world.admitted) >= 2 and world.called("join_batch"))

    world.harness_seconds = lambda spec: 1000.0 if held(spec) else 0.0
    await (await world.start_burst(**late)).result()
    names = [name for name, _ in world.calls]
    last_admission = max(index for index, name in enumerate(names) if name == "admit_group")
    assert names.index("run_micro_step") > last_admission
    assert names.index("pack_group") > last_admission


async def test_with_streaming_the_same_batch_begins_before(world: FakeWorld):
    world.harness_seconds = lambda spec: 1000.0 if spec.group == 1 and not world.called("run_micro_step") else 0.0
    await (await world.start_burst(groups_per_step=3, policy={"name": "async", "split": 1})).result()
    names = [name for name, _ in world.calls]
    assert names.index("run_micro_step") < max(index for index, name in enumerate(names) if name == "admit_group")


async def test_a_shuffled_burst_gives_its_groups_to_its_steps_at_random(world: FakeWorld):
    policy = {"name": "waterlevel", "hold_seconds": 0, "streaming": False, "shuffle": True}
    await (await world.start_burst(groups_per_step=4, steps=3, executions_per_group=2, seed=5, policy=policy)).result()
    names = [name for name, _ in world.calls]
    assert names.index("pack_group") > max(index for index, name in enumerate(names) if name == "admit_group")
    everybody = [f"first/{number:04d}" for number in range(12)]
    shuffled = sorted(everybody, key=lambda name: hashlib.sha256(f"5/{name}".encode()).digest())
    assert shuffled != everybody
    steps = [sorted(commit.groups) for commit in world.commits.values()]
    assert steps == [sorted(shuffled[start : start + 4]) for start in (0, 4, 8)], "the seed's lots, whoever came first"
    await world.whole_ledger()
    assert "shuffled over its steps" in world.noted("dispatch")[0].reasons


async def test_a_split_that_leaves_nobody_is_refused_and_named(world: FakeWorld):
    burst = await world.start_burst(policy={"name": "async", "split": 2})
    with pytest.raises(WorkflowFailureError) as caught:
        await burst.result()
    assert "policy.split: 2 leaves none of 2 cells" in str(caught.value.__cause__)


def claimed(world: FakeWorld) -> set[str]:
    """Groups that a cell has begun to train on."""
    return {task.micro_step.group for task in world.called("run_micro_step")}


def starved(world: FakeWorld) -> list[Any]:
    """Entries of cells that were sent back to serve because executions starved."""
    return [entry for entry in world.noted("return") if entry.reasons[0] == "starved"]


async def test_replaced_executions_get_an_engine_back_when_every_cell_trains(make_world):
    """Starvation: all executions are over, both cells train; then a group without signal is replaced.

    So it has to be the last group that is over, and it is judged when the cells are at work on all others: in any other
    order they would have a group left to train on, and nobody would starve.
    """
    world = await make_world(**UNSWEPT)
    world.reward = lambda spec: 1.0 if spec.group == 2 else float(spec.member)
    world.may_finish = lambda cell: False
    world.harness_seconds = lambda spec: 1000.0 if spec.group == 2 and len(world.admitted) < 2 else 0.0
    world.faults.add(
        "admit_group", times=None, when=lambda request: request.group == 2, until=lambda: len(claimed(world)) == 2
    )
    policy = {"hold_seconds": 0, "supply_fraction": 0, "in_flight_depth": world.micro_steps}
    burst = await world.start_burst(groups_per_step=3, policy=policy, training={"refill": True})
    await world.eventually(lambda: starved(world))
    world.may_finish = lambda cell: True
    assert (await burst.result()).steps[0].groups_with_signal == 3
    await world.whole_ledger()
    (back,) = starved(world)
    assert (back.cell, back.direction) == (1, Direction.TO_ROLLOUT)
    assert [cell["role"] for cell in back.state["cells"]] == ["training", "training"]
    assert (await world.state()).accounts.finished == 8
    await world.until(world.all_serving)


async def test_a_cell_that_is_late_for_its_burst_stays_for_the_next_one_if_the_policy_keeps_it(make_world):
    """A move that is decided at the last commit of a burst ends after it. It is worth no less for that."""
    world = await make_world((4, 4, 4))
    late = world.faults.add(
        "restore_training", when=lambda lease: lease.cell == 1, until=lambda: world.noted("publish")
    )
    policy = {"name": "async", "split": 2, "hold_seconds": 0}
    assert len(await world.run_campaign(bursts=3, steps=1, policy=policy)) == 3
    assert late.hits == 1
    await world.until(world.all_serving)
    await world.whole_ledger()
    assert departures(world, Direction.TO_TRAINING) == {0: 1, 1: 1}
    assert 1 in {entry.cell for entry in world.noted("stay")}


async def test_processor_slots_go_where_they_are_short(make_world):
    """Two harnesses at once are too few, six graders too many: `throughput` shares them out, the host obeys."""
    world = await make_world((4, 4, 4), harness_slots=2, evaluator_slots=6)
    world.harness_seconds = lambda spec: 0.5
    policy = {"name": "throughput", "throughput": EAGER}
    await (await world.start_burst(steps=5, groups_per_step=2, executions_per_group=4, policy=policy)).result()
    await world.whole_ledger()
    assert (world.shares[0].harness, world.shares[0].evaluator) == (2, 6)
    assert world.shares[-1].harness > 2
    assert world.shares[-1].harness + world.shares[-1].evaluator == 8
    shared = [entry for entry in world.noted("move") if entry.cell is None]
    assert shared
    assert shared[0].bottleneck == "harness"
    assert shared[0].expected_gain_seconds > 0
