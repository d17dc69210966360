"""New workflow code is deployed while runs are alive: with a patch they go on, without one they wait for the fix.

Temporal is real, workers are as in production (sandbox, what fails a workflow, sticky time-out). A worker is replaced
by leaving one block and entering the next.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import Worker
from temporalio.worker._worker import load_default_build_id

from infra.code import workflow_code
from infra.temporal.client import stuck
from tests.workflows.control_steps import FIRST
from tests.workflows.deploys import (
    CHECK,
    CarelessErrand,
    LastErrand,
    NewCounting,
    NewErrand,
    OldCounting,
    OldErrand,
    OldTally,
    step,
)
from tests.workflows.server import dev_server
from workers.cli.status import _stuck_line
from workers.control.worker import DEPLOYMENT, FAILURES, workflow_runner, workflow_worker
from workflows.books import SchedulerState
from workflows.cell_table import CellEntry
from workflows.messages import ids
from workflows.messages.fleet import CellSpec
from workflows.messages.scheduling import RunSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def temporal_address() -> Iterator[str]:
    with dev_server("system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute=1") as address:
        yield address


@pytest.fixture
def queue() -> str:
    return f"deploys-{uuid4().hex[:8]}"


def worker(client: Client, queue: str, code: type) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        workflows=[code],
        activities=[step],
        workflow_runner=workflow_runner(),
        workflow_failure_exception_types=FAILURES,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )


async def start(client: Client, queue: str, kind: str, *arguments: Any) -> WorkflowHandle[Any, Any]:
    name = f"{queue}/{uuid4().hex[:8]}"
    return await client.start_workflow(kind, args=arguments, id=name, task_queue=queue)


async def begun(client: Client, queue: str) -> WorkflowHandle[Any, Any]:
    """An errand that has done its first step."""
    handle = await start(client, queue, "Errand")
    await until(handle, lambda done: EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED in done)
    return handle


async def until(handle: WorkflowHandle[Any, Any], holds: Callable[[list[Any]], bool]) -> list[Any]:
    """Wait until the kinds of a workflow's events are so; its history then."""
    while True:
        events = list((await handle.fetch_history()).events)
        if holds([event.event_type for event in events]):
            return events
        await asyncio.sleep(0.1)


async def failed_task(handle: WorkflowHandle[Any, Any]) -> tuple[Any, str]:
    """Cause and words of a workflow task that failed; waits for one. The workflow itself must be alive."""
    events = await until(handle, lambda kinds: EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED in kinds)
    failed = next(e for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
    failure = failed.workflow_task_failed_event_attributes
    assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    return failure.cause, words(failure.failure)


def words(failure: Failure) -> str:
    own = failure.message
    return f"{own}: {words(failure.cause)}" if failure.HasField("cause") else own


async def listed(client: Client, query: str, count: int) -> set[str]:
    """Ids of the workflows that a person finds by this query; waits until there are as many as expected."""
    while len(found := {execution.id async for execution in client.list_workflows(query)}) < count:
        await asyncio.sleep(0.2)
    return found


async def test_with_a_patch_a_run_goes_on_as_it_began_and_new_ones_do_as_the_new_code(client: Client, queue: str):
    async with worker(client, queue, OldErrand):
        old = await begun(client, queue)
    async with worker(client, queue, NewErrand):
        new = await begun(client, queue)
        for handle in (old, new):
            await handle.signal("go_on")
        assert await old.result() == ["first", "second"]
        assert await new.result() == ["check", "first", "second"]
        here = f"TaskQueue = '{queue}' AND TemporalChangeVersion"
        assert await listed(client, f"{here} = '{CHECK.id}'", 1) == {new.id}
        assert await listed(client, f"{here} IS NULL", 1) == {old.id}  # whoever still keeps the patch from expiring


async def test_an_expired_patch_lets_runs_go_on_that_asked_for_it(client: Client, queue: str):
    async with worker(client, queue, NewErrand):
        asked = await begun(client, queue)
    async with worker(client, queue, LastErrand):
        await asked.signal("go_on")
        assert await asked.result() == ["check", "first", "second"]
        fresh = await begun(client, queue)
        await fresh.signal("go_on")
        assert await fresh.result() == ["check", "first", "second"]


async def test_without_a_patch_the_run_waits_visibly_and_the_right_code_heals_it(client: Client, queue: str):
    async with worker(client, queue, OldErrand):
        old = await begun(client, queue)
    async with worker(client, queue, CarelessErrand):
        await old.signal("go_on")
        cause, text = await failed_task(old)
        assert cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
        assert "Nondeterminism" in text
        while await stuck(client, queue) != [old.id]:
            await asyncio.sleep(0.2)
        assert (await _stuck_line(client, queue, "other")).startswith(f"{old.id}: this code cannot go on; ")
        # Both workers here have one build id, which Temporal's SDK made up: as if one code had written this history.
        own = await _stuck_line(client, queue, load_default_build_id())
        assert own.startswith(f"{old.id}: this code wrote the history and cannot replay it; ")
    async with worker(client, queue, NewErrand):
        assert await old.result() == ["first", "second"]
        while await stuck(client, queue):
            await asyncio.sleep(0.2)


async def test_a_newer_state_waits_for_the_code_that_knows_it(client: Client, queue: str):
    async with worker(client, queue, OldCounting):
        tally = await start(client, queue, "Tally", OldTally(count=3))
        second = await rolled_over(client, tally.id, tally.first_execution_run_id)
    async with worker(client, queue, NewCounting):
        third = await rolled_over(client, tally.id, second)
    newest = client.get_workflow_handle(tally.id, run_id=third)
    async with worker(client, queue, OldCounting):
        await newest.signal("count")
        _, text = await failed_task(newest)
        assert "OldTally.format: 2, but this code knows format 1. Nothing is lost: it waits for a worker" in text
    async with worker(client, queue, NewCounting):
        await newest.signal("end")
        assert await newest.result() == "4 by hand, 2 by machine"


async def rolled_over(client: Client, name: str, run: str | None) -> str:
    """Count one in this run of a tally and roll it over; the id of the run that follows."""
    handle = client.get_workflow_handle(name, run_id=run)
    await handle.signal("count")
    await handle.signal("roll_over")
    events = await until(handle, lambda kinds: EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW in kinds)
    return events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id


@pytest.mark.parametrize(
    ("other", "named"),
    [({"format": 99}, "format: 99, but this code knows format"), ({"tides": "of tomorrow"}, "tides: Extra inputs")],
)
async def test_a_scheduler_that_other_code_carried_over_is_not_failed_for_good(client: Client, other: Any, named: str):
    run = f"run-{uuid4().hex[:8]}"
    cell = CellSpec(index=0, engine="paced", slots=1)
    spec = RunSpec(run=run, cells=(cell,), weights=FIRST)
    state = SchedulerState(spec=spec, weights=FIRST, cells=(CellEntry(spec=cell),)).model_dump(mode="json")
    name = ids.scheduler_id(run)
    handle = await client.start_workflow("Scheduler", {**state, **other}, id=name, task_queue=ids.WORKFLOW_QUEUE)
    async with workflow_worker(client):
        _, text = await failed_task(handle)
    assert f"SchedulerState.{named}" in text
    assert "it waits for a worker with the code that wrote it" in text
    await handle.terminate()


async def test_the_worker_shows_its_code(client: Client):
    handle = await client.start_workflow("Burst", {}, id=f"r/burst/{uuid4().hex[:8]}", task_queue=ids.WORKFLOW_QUEUE)
    async with workflow_worker(client):
        events = await until(handle, lambda kinds: EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED in kinds)
    done = next(e for e in events if e.HasField("workflow_task_completed_event_attributes"))
    assert done.workflow_task_completed_event_attributes.worker_version.build_id == workflow_code()
    assert done.workflow_task_completed_event_attributes.worker_deployment_name == DEPLOYMENT
    query = f"WorkflowId = '{handle.id}' AND BuildIds = 'unversioned:{workflow_code()}'"
    assert await listed(client, query, 1) == {handle.id}
