"""Bursts from start to end: counts, order, evaluation, wrong files, supply, positions."""

import asyncio

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.workflows.histories import histories_of, signals_at_once
from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld, names_of
from workflows.messages import ids
from workflows.messages.burst import BurstReport

pytestmark = pytest.mark.timeout(400)


async def failure_of(handle) -> str:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    return str(caught.value.cause)


@pytest.mark.essential
async def test_a_burst_runs_to_its_end_with_exact_counters(world: FakeWorld):
    async with watching(world) as seen:
        report = await (await world.start_burst(steps=2)).result()
    assert seen[-1] == (8, 8, 8)
    assert [(step.version_before, step.version_after) for step in report.steps] == [(0, 1), (1, 2)]
    assert report.version == 2
    assert all(step.groups == 2 for step in report.steps)
    state = await world.until(world.all_serving)
    assert (state.burst, state.batch, state.accounts.ready, state.accounts.roster) == (None, None, (), {})
    assert list(world.commits) == world.opened
    shown = await world.shown(ids.scheduler_id(world.run))
    assert "| burst | none |" in shown
    assert "| published version | 2 |" in shown
    assert "8 dispatched, 8 launched, 8 finished" in shown
    assert [result.result for result in world.transitions if result.result != "done"] == []


async def test_bursts_queue_and_keep_their_groups_and_positions(world: FakeWorld):
    """Cases 38, 52, 53: surplus groups go on in order; every task once; the same number outstanding each time."""
    world.harness_seconds = lambda spec: 1000.0  # the first is at work until the others wait
    first = await world.start_in_order("first", carry_over=1.5)
    second = await world.start_in_order("second", carry_over=1.5)
    third = await world.start_in_order("third", final=True)
    evaluation = await world.start_in_order("score", purpose="evaluate", groups_per_step=3)
    assert names_of(await world.state()) == ["first", "second", "third", "score"]
    world.harness_seconds = lambda spec: 0.0
    reports = await asyncio.gather(*(handle.result() for handle in (first, second, third, evaluation)))
    assert [report.executions for report in reports] == [10, 4, 0, 6]
    assert reports[3].mean_reward == 0.5
    trained = [group for commit in world.commits.values() for group in commit.groups]
    assert trained == [f"{group.burst}/{group.group:04d}" for group in world.admitted][: len(trained)]
    assert len(trained) == len(set(trained)) == 6
    # The surplus group is nobody's to wait for: the last burst may end before it.
    state = await world.until(lambda state: not (state.accounts.roster or state.accounts.groups))
    assert list(state.positions.values()) == [7]
    left = [f"{group.burst}/{group.group:04d}" for group in state.accounts.ready]
    assert len(left) == 1
    assert set(trained) & set(left) == set()
    tasks = [spec.task for spec in world.called("prepare_workspace") if spec.purpose == "train" and spec.member == 0]
    assert sorted(tasks) == world.tasks[:7]
    assert state.accounts.dispatched == state.accounts.finished == 20


async def test_a_burst_of_nothing_closes_at_once(world: FakeWorld):
    """Case 44."""
    report = await (await world.start_burst(groups_per_step=0)).result()
    assert (report.executions, report.steps, report.version, report.mean_reward) == (0, (), 0, None)
    assert world.opened == []


async def test_groups_without_signal_close_the_batch_without_an_update(world: FakeWorld):
    """Case 34."""
    world.reward = lambda spec: 1.0
    report = await (await world.start_burst(steps=2)).result()
    assert [(step.version_before, step.version_after, step.groups_with_signal) for step in report.steps] == [
        (0, 0, 0),
        (0, 0, 0),
    ]
    assert report.version == 0
    assert len(world.commits) == 2
    assert world.called("combine_update") == []


async def test_refill_replaces_groups_without_signal_and_stops(world: FakeWorld):
    """Case 34: with `refill` such a group takes no place; bounded, or nothing would ever end."""
    world.reward = lambda spec: 1.0 if spec.task in world.tasks[:2] else float(spec.member)
    report = await (await world.start_burst(training={"refill": True})).result()
    assert report.steps[0].groups_with_signal == 2
    assert (await world.state()).accounts.dispatched == 8
    world.reward = lambda spec: 1.0
    report = await (await world.start_burst("second", training={"refill": True})).result()
    assert report.steps[0].groups_with_signal == 0
    assert (await world.state()).accounts.dispatched == 8 + 4 + 8


@pytest.mark.essential
async def test_a_batch_gets_its_groups_in_the_order_of_their_admission(world: FakeWorld):
    """Also those that it is told of all at once: signals that are under way together may overtake each other."""
    policy = {"name": "async", "split": 1, "streaming": False}
    await (await world.start_burst(groups_per_step=4, policy=policy)).result()
    (history,) = [history for kind, history in await histories_of(world.client, world.run) if kind == "Scheduler"]
    assert signals_at_once(history) == 1
    (commit,) = world.commits.values()
    sequence = {ids.group_id(group.burst, group.group): group.sequence for group in world.admitted}
    assert [sequence[group] for group in commit.groups] == [1, 2, 3, 4]


async def test_a_wrong_file_fails_and_names_the_field(world: FakeWorld):
    good = world.burst_spec().model_dump(mode="json")
    name = ids.burst_id(world.run, "first")
    for wrong, field in (({"groups_per_step": -1}, "groups_per_step"), ({"lr": 1}, "lr"), ({"name": "A b"}, "name")):
        handle = await world.client.start_workflow("Burst", {**good, **wrong}, id=name, task_queue="gyre")
        assert field in await failure_of(handle)
    handle = await world.client.start_workflow("Burst", good, id=f"{world.run}/burst/other", task_queue="gyre")
    assert f"--workflow-id {name}" in await failure_of(handle)
    for kind, files in (("Burst", []), ("Burst", [good, good]), ("Campaign", [])):
        handle = await world.client.start_workflow(kind, args=files, id=name, task_queue="gyre")
        assert "spec" in await failure_of(handle) or "positional" in await failure_of(handle)
    handle = await world.start_burst(tasks="nowhere")
    assert "tasks: no task set nowhere" in await failure_of(handle)
    orphan = {**good, "run": "no-such-run"}
    handle = await world.client.start_workflow("Burst", orphan, id="no-such-run/burst/first", task_queue="gyre")
    assert "no scheduler runs" in await failure_of(handle)
    await (await world.start_burst(groups_per_step=0)).result()  # nothing is left in the way


async def test_a_name_trains_once_in_a_run(world: FakeWorld):
    """Its batches' ids, and with them what was committed, would be those of the burst before."""
    await (await world.start_burst()).result()
    handle = await world.start_burst()
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, ApplicationError)
    assert "choose another name" in caught.value.cause.message
    for _ in range(2):
        await (await world.start_burst("again", purpose="evaluate")).result()
    assert (await world.state()).accounts.finished == 4 + 4 + 4


async def test_a_campaign_keeps_its_core_and_hands_groups_on(world: FakeWorld):
    spec = world.burst_spec(carry_over=1.0, steps=1, executions_per_group=2, groups_per_step=2)
    campaign = {"run": world.run, "name": "long", "bursts": 3, "burst": spec.model_dump(mode="json")}
    async with watching(world) as seen:
        report = await world.client.execute_workflow(
            "Campaign", campaign, id=ids.campaign_id(world.run, "long"), task_queue="gyre"
        )
    bursts = [BurstReport.model_validate(burst) for burst in report["bursts"]]
    assert [burst.version for burst in bursts] == [1, 2, 3]
    assert [burst.executions for burst in bursts] == [8, 4, 0]
    assert seen[-1] == (12, 12, 12)
    assert (await world.until(world.all_serving)).accounts.ready == ()
    await world.whole_ledger()
    core = [entry.kind for entry in world.ledger.values() if entry.cell == 0 and entry.kind in ("stay", "return")]
    assert len(core) == 3, "one word about the core at each burst's end"
