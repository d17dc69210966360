"""Bursts, batches and executions that end another way: cancelled, terminated, failed. The run goes on after each."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld, names_of
from workflows.messages import ids
from workflows.messages.errors import Fenced
from workflows.messages.execution import EndReason, ExecutionClosed, Outcome
from workflows.messages.transition import Resolution

pytestmark = pytest.mark.timeout(400)


async def cancelled(handle, then: Callable[[], Any] = lambda: None) -> None:
    """Cancel, and `then` let go on what was held until the cancellation had been asked for."""
    await handle.cancel()
    then()
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, CancelledError)


async def the_next_burst_runs(world: FakeWorld, **changes) -> None:
    """After whatever happened: every cell serves again, and a burst trains as if nothing had been."""
    world.faults.clear()
    world.harness_seconds, world.micro_step_seconds = (lambda spec: 0.0), 0.0
    before = world.committed.version
    report = await (await world.start_burst("after", **changes)).result()
    assert report.version == before + 1
    state = await world.until(world.all_serving)
    books = state.accounts
    assert books.dispatched == books.launched == books.finished
    assert (books.roster, books.queue, state.burst, state.batch) == ({}, (), None, None)


async def test_cancelling_a_burst_counts_what_was_queued_and_what_ran(make_world):
    world = await make_world((2, 2))
    world.harness_seconds = lambda spec: 1000.0
    async with watching(world) as seen:
        burst = await world.start_in_order("first", groups_per_step=4)
        waiting = await world.start_in_order("waiting")
        await world.eventually(lambda: len(world.called("run_harness")) == 4)
        await cancelled(waiting)
        await cancelled(burst)
    assert seen[-1] == (8, 8, 8)
    assert len(world.called("prepare_workspace")) == 4
    ends = [finish.run.end for finish in world.called("finish_execution")]
    assert ends == [EndReason.CANCELLED] * 4
    await the_next_burst_runs(world)
    assert world.called("admit_group")[0].burst == "after"


async def test_cancelling_an_evaluation(make_world):
    world = await make_world((2, 2))
    world.harness_seconds = lambda spec: 1000.0
    burst = await world.start_burst(purpose="evaluate", groups_per_step=4)
    await world.eventually(lambda: len(world.called("run_harness")) == 4)
    await cancelled(burst)
    await the_next_burst_runs(world)


@pytest.mark.parametrize("fault", [{"delay_seconds": 100.0}, {"error": Fenced("no")}])
async def test_cancelling_a_burst_that_is_being_opened(world: FakeWorld, fault):
    """Its tasks are being drawn; the answer never comes, or is a refusal that crosses the cancellation."""
    asked = asyncio.Event()
    world.faults.add("select_tasks", until=asked.is_set, **fault)
    burst = await world.start_burst()
    await world.eventually(lambda: world.called("select_tasks"))
    await burst.cancel()
    asked.set()
    with pytest.raises(WorkflowFailureError):
        await burst.result()
    assert (await world.state()).positions == {}
    await the_next_burst_runs(world)


async def test_cancelling_in_training_keeps_the_groups_of_other_bursts(world: FakeWorld):
    """Nothing of the open batch counts; groups carried over from the burst before are trained by the next one."""
    await (await world.start_burst("first", carry_over=1.0)).result()
    await world.eventually(lambda: len(world.admitted) == 4)
    carried = tuple(f"first/{group.group:04d}" for group in world.admitted[2:])
    world.micro_step_seconds = 1000.0
    burst = await world.start_burst("second", carry_over=1.0)
    await world.eventually(lambda: len(world.called("run_micro_step")) > 4)
    await cancelled(burst)
    assert (await world.status(ids.batch_id(world.run, "second", 0))) == WorkflowExecutionStatus.CANCELED
    assert list(world.commits) == [ids.batch_id(world.run, "first", 0)]
    await the_next_burst_runs(world, steps=1)
    assert world.commits[ids.batch_id(world.run, "after", 0)].groups == carried


async def test_a_burst_cancelled_after_a_commit_publishes_what_is_committed(world: FakeWorld):
    """Or the next one would train the same version again, which its commit refuses for ever."""
    second = ids.batch_id(world.run, "first", 1)
    world.faults.add("pack_group", delay_seconds=100.0, when=lambda request: request.batch == second)
    burst = await world.start_burst(steps=2)
    await world.eventually(lambda: second in world.opened)
    await cancelled(burst)
    state = await world.until(world.all_serving)
    assert state.weights == world.committed
    assert state.weights.version == 1
    await the_next_burst_runs(world)


async def test_a_cancel_that_crosses_the_commit_changes_nothing(world: FakeWorld):
    """The world notes a problem when an update on record is taken back."""
    asked = asyncio.Event()
    world.faults.add("commit_batch", times=None, until=asked.is_set)
    burst = await world.start_burst(steps=2)
    await world.eventually(lambda: world.called("commit_batch"))
    await cancelled(burst, then=asked.set)
    assert (await world.status(ids.batch_id(world.run, "first", 0))) == WorkflowExecutionStatus.COMPLETED
    assert world.opened == [ids.batch_id(world.run, "first", 0)]
    await the_next_burst_runs(world)


async def test_cancelling_with_finish_batch_commits_the_open_batch(world: FakeWorld):
    world.micro_step_seconds = 3.0
    world.harness_seconds = lambda spec: 0.0 if spec.group == 0 else 1000.0
    burst = await world.start_burst(on_cancel="finish_batch", policy={"hold_seconds": 0, "supply_fraction": 0.5})
    await world.eventually(lambda: world.called("pack_group"))
    await cancelled(burst)
    assert world.committed.version == 1
    assert [group.no_signal for group in world.admitted] == [None, "too_few_valid"]
    await the_next_burst_runs(world)


async def test_cancelling_while_publishing(world: FakeWorld):
    """Executions carried over still run then: the burst is not forgotten before they are closed."""
    world.harness_seconds = lambda spec: 0.0 if spec.group < 2 else 1000.0
    asked = asyncio.Event()
    world.faults.add("load_weights", times=None, until=asked.is_set, when=lambda request: request.weights.version == 1)
    burst = await world.start_burst(carry_over=1.0)
    await world.until(lambda state: state.publishing)
    await cancelled(burst, then=asked.set)
    await the_next_burst_runs(world)


@pytest.mark.essential
async def test_a_terminated_execution_is_counted_once(world: FakeWorld):
    world.harness_seconds = lambda spec: 1000.0 if (spec.group, spec.member) == (0, 1) else 0.0
    burst = await world.start_burst(groups_per_step=1, executions_per_group=3)
    await world.eventually(lambda: sum(world.closed.values()) == 2 and len(world.called("run_harness")) == 3)
    name = ids.execution_id(world.run, "first", 0, 1)
    async with watching(world) as seen:
        await world.handle(name).terminate("by hand")
        report = await burst.result()
        late = ExecutionClosed(
            execution=name, burst="first", group=0, member=1, end=EndReason.EXITED, outcome=Outcome.SCORED, reward=1
        )
        await world.scheduler.signal("execution_closed", late)
        await world.scheduler.signal("execution_closed", late.model_copy(update={"execution": "x/execution/y/0/0"}))
    assert seen[-1] == (3, 3, 3)
    assert world.closed[name] == 1
    assert report.steps[0].groups == 1
    assert world.outcomes[name].outcome is Outcome.NO_ARTIFACT


@pytest.mark.parametrize("what", ["burst", "batch"])
async def test_terminating_a_burst_or_its_batch_frees_the_run(world: FakeWorld, what):
    world.micro_step_seconds = 1000.0
    burst = await world.start_burst(carry_over=1.0)
    batch = ids.batch_id(world.run, "first", 0)
    await world.eventually(lambda: world.called("run_micro_step"))
    await world.handle(burst.id if what == "burst" else batch).terminate("by hand")
    with pytest.raises(WorkflowFailureError):
        await burst.result()
    state = await world.until(lambda state: state.burst is None)
    assert state.accounts.ready == ()
    assert world.commits == {}
    await the_next_burst_runs(world)
    await world.whole_ledger()
    assert any("terminated" in reason for entry in world.ledger.values() for reason in entry.reasons)


async def test_a_terminated_burst_that_waits_is_forgotten(world: FakeWorld):
    world.harness_seconds = lambda spec: 1000.0
    first = await world.start_in_order("first")
    waiting = await world.start_in_order("waiting")
    await waiting.terminate()
    await world.until(lambda state: not state.waiting)
    world.harness_seconds = lambda spec: 0.0
    await first.result()
    assert names_of(await world.state()) == []
    await the_next_burst_runs(world)


async def test_a_micro_step_that_never_works_parks_the_batch_and_an_abort_frees_the_run(world: FakeWorld):
    world.faults.add(
        "run_micro_step", error=Fenced("poisoned"), times=None, when=lambda task: task.micro_step.index == 1
    )
    burst = await world.start_burst()
    batch = ids.batch_id(world.run, "first", 0)
    assert "poisoned" in (await world.blocked(batch))[0]
    assert (await world.resolve(batch, Resolution.RETRY)).endswith("retry")
    await world.resolve(batch, Resolution.ABORT)
    with pytest.raises(WorkflowFailureError):
        await burst.result()
    await the_next_burst_runs(world)
