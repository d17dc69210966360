"""Executions that hang, fail, are cancelled: each closes once, by a limit, and its group completes (case 36)."""

import asyncio
import dataclasses
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld
from workers.control.worker import FAILURES, WORKFLOWS
from workflows import execution, steps
from workflows.messages import ids
from workflows.messages.errors import EvaluatorFailure, Fenced, HarnessUnusable
from workflows.messages.execution import EndReason, Outcome
from workflows.messages.transition import Resolution

pytestmark = pytest.mark.timeout(400)


def shorten(monkeypatch, *names: str) -> None:
    """The limits are minutes. Here, without the sandbox (which reads the modules afresh), those of these steps are a
    second or two; all others are as they are, or a busy machine would run into them too."""
    monkeypatch.setattr(execution, "HOST_GRACE_SECONDS", 1.0)
    if "prepare_workspace" in names:
        monkeypatch.setattr(execution, "PREPARE_SECONDS", 2.0)
    for name in {"finish_execution", "process_execution"} & set(names):
        short = dataclasses.replace(getattr(steps, name.upper()), start_to_close=1.0)
        monkeypatch.setattr(steps, name.upper(), short)


@pytest.fixture
async def impatient(client: Client, tmp_path):
    worker = Worker(
        client,
        task_queue=ids.WORKFLOW_QUEUE,
        workflows=WORKFLOWS,
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_failure_exception_types=FAILURES,
        graceful_shutdown_timeout=timedelta(seconds=5),
    )
    async with worker:
        world = FakeWorld(client, f"run-{uuid4().hex[:8]}", tmp_path, (8, 8))
        try:
            await world.start()
            yield world
        finally:
            await world.close()
        assert world.problems == []


PATIENT = {"wall_seconds": 200, "evaluator_seconds": 200, "evaluator_attempts": 1}
SHORT = {
    "run_harness": {"wall_seconds": 0.5, "grace_seconds": 0.5},
    "evaluate_workspace": {"evaluator_seconds": 0.1},
}
"""Limits that a burst sets itself."""


def stuck(spec) -> bool:
    return (getattr(spec, "spec", spec).group, getattr(spec, "spec", spec).member) == (0, 0)


@pytest.mark.parametrize(
    ("step", "end", "outcome"),
    [
        ("prepare_workspace", EndReason.NEVER_RAN, Outcome.NO_ARTIFACT),
        ("run_harness", EndReason.CRASHED, Outcome.SCORED),
        ("evaluate_workspace", EndReason.SUBMITTED, Outcome.EVALUATOR_FAILED),
        ("process_execution", EndReason.SUBMITTED, Outcome.EVALUATOR_FAILED),
        ("finish_execution", EndReason.SUBMITTED, Outcome.SCORED),
    ],
)
async def test_a_host_that_never_answers_is_waited_for_only_so_long(
    impatient: FakeWorld, monkeypatch, step, end, outcome
):
    world = impatient
    shorten(monkeypatch, step)
    world.faults.add(step, hang=True, times=None, when=stuck)
    async with watching(world) as seen:
        burst = await world.start_burst(limits=PATIENT | SHORT.get(step, {}), executions_per_group=3)
        report = await burst.result()
    assert seen[-1] == (6, 6, 6)
    assert report.steps[0].groups == 2
    name = ids.execution_id(world.run, "first", 0, 0)
    closed = await world.handle(name).result()
    assert (closed["end"], closed["outcome"]) == (end, outcome)


async def test_a_dead_host_ends_every_execution(impatient: FakeWorld, monkeypatch):
    """Case 36: all workers die; nothing waits for ever, w is 0 again, the batch closes without signal."""
    world = impatient
    dead = ("prepare_workspace", "finish_execution")
    shorten(monkeypatch, *dead)
    for name in dead:
        world.faults.add(name, hang=True, times=None)
    report = await (await world.start_burst()).result()
    assert (report.steps[0].groups_with_signal, report.version) == (0, 0)
    books = (await world.state()).accounts
    assert books.dispatched == books.finished == 4


async def test_an_unusable_harness_is_scored_by_what_is_left(world: FakeWorld):
    world.faults.add("run_harness", error=HarnessUnusable("not installed"), times=None, when=stuck)
    await (await world.start_burst()).result()
    closed = await world.handle(ids.execution_id(world.run, "first", 0, 0)).result()
    assert (closed["end"], closed["outcome"], closed["reward"]) == ("crashed", "scored", 0.0)


@pytest.mark.parametrize(("setting", "valid", "reward"), [("exclude", 5, None), ("zero", 6, 0.0)])
async def test_nothing_ever_ran_is_left_out_or_scored_zero(world: FakeWorld, setting, valid, reward):
    world.faults.add("prepare_workspace", error=HarnessUnusable("no image"), times=None, when=stuck)
    report = await (await world.start_burst(no_artifact=setting, executions_per_group=3)).result()
    assert report.executions_valid == valid
    closed = await world.handle(ids.execution_id(world.run, "first", 0, 0)).result()
    assert (closed["end"], closed["reward"]) == ("never_ran", reward)


async def test_an_evaluator_that_failed_once_is_asked_again(world: FakeWorld):
    world.faults.add("evaluate_workspace", error=EvaluatorFailure("busy"), when=stuck)
    report = await (await world.start_burst()).result()
    assert report.executions_valid == 4


async def test_an_execution_parks_when_its_records_cannot_be_processed(world: FakeWorld):
    world.faults.add("process_execution", error=Fenced("broken records"), times=2, when=stuck)
    burst = await world.start_burst()
    handle = world.handle(ids.execution_id(world.run, "first", 0, 0))
    await world.eventually(lambda: len(world.called("process_execution")) == 4)
    for resolution in (Resolution.RETRY, Resolution.SKIP):
        await world.until(lambda state: state.accounts.finished == 3)
        await world.blocked(handle.id)
        assert (await handle.describe()).search_attributes["Phase"] == ["BLOCKED"]
        await handle.execute_update("resolve_step", resolution)
    report = await burst.result()
    assert (await handle.result())["outcome"] == Outcome.EVALUATOR_FAILED
    assert report.executions_valid == 2


async def test_a_cancel_that_comes_while_it_closes_loses_nothing(world: FakeWorld):
    """Its score stands, the host hears of its end, the Scheduler counts it."""
    asked = asyncio.Event()
    world.faults.add("finish_execution", times=None, until=asked.is_set, when=stuck)
    burst = await world.start_burst()
    name = ids.execution_id(world.run, "first", 0, 0)
    await world.eventually(lambda: any(stuck(finish) for finish in world.called("finish_execution")))
    await world.handle(name).cancel()
    asked.set()
    report = await burst.result()
    assert report.executions_valid == 4
    assert world.closed[name] == 1
    assert (await world.handle(name).result())["outcome"] == Outcome.SCORED


async def test_a_parked_execution_can_be_cancelled(world: FakeWorld):
    world.faults.add("process_execution", error=Fenced("broken records"), when=stuck)
    burst = await world.start_burst()
    handle = world.handle(ids.execution_id(world.run, "first", 0, 0))
    await world.until(lambda state: state.accounts.finished == 3)
    await world.blocked(handle.id)
    await handle.cancel()
    await burst.result()
    closed = await handle.result()
    assert (closed["end"], closed["outcome"]) == ("cancelled", "no_artifact")
    described = await handle.describe()
    assert described.search_attributes["Phase"] == ["CLOSED"]
