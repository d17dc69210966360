"""Queries that reach a workflow from further on than its last workflow task; the last test on a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer, Worker, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from infra.temporal.client import ask
from tests.workflows.server import connect, dev_server
from workers.control.rebuilt import GuardedRunner, QueryGuard
from workers.control.worker import workflow_runner

TRIES = 5


def activation(job: str, *, length: int, seconds: int) -> WorkflowActivation:
    """What the SDK gives a workflow: one job, the history's length, and the begin of the workflow task."""
    made = WorkflowActivation(run_id="run", history_length=length)
    made.timestamp.FromSeconds(seconds)
    getattr(made.jobs.add(), job).SetInParent()
    return made


START = activation("initialize_workflow", length=3, seconds=100)
SIGNAL = activation("signal_workflow", length=7, seconds=200)


@pytest.fixture
def guard() -> QueryGuard:
    guard = QueryGuard()
    assert not guard.refuses(START)
    return guard


def test_a_query_after_events_of_no_workflow_task_is_refused(guard: QueryGuard) -> None:
    assert not guard.refuses(activation("signal_workflow", length=6, seconds=100)), "only the query fails"
    assert guard.refuses(activation("query_workflow", length=6, seconds=100))


def test_what_such_events_lead_to_at_once_changes_nothing(guard: QueryGuard) -> None:
    guard.refuses(activation("fire_timer", length=6, seconds=100))
    guard.refuses(activation("resolve_activity", length=6, seconds=100))
    assert guard.refuses(activation("query_workflow", length=6, seconds=100))


@pytest.mark.parametrize("length", [7, 9])
def test_a_query_after_a_workflow_task_is_answered(guard: QueryGuard, length: int) -> None:
    guard.refuses(SIGNAL)
    guard.refuses(activation("resolve_activity", length=7, seconds=200))  # of the same task: its history is the same
    assert not guard.refuses(activation("query_workflow", length=length, seconds=200))


def test_a_workflow_task_ends_the_refusal(guard: QueryGuard) -> None:
    guard.refuses(activation("signal_workflow", length=6, seconds=100))
    guard.refuses(SIGNAL)
    assert not guard.refuses(activation("query_workflow", length=7, seconds=200))


def test_the_control_worker_runs_every_workflow_behind_the_guard() -> None:
    assert isinstance(workflow_runner(), GuardedRunner)


@workflow.defn(name="Pokes")
class Pokes:
    """One command for each time it wakes: which commands there are depends on how events come together."""

    def __init__(self) -> None:
        self.got = self.seen = 0

    @workflow.run
    async def run(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self.got > self.seen)
            self.seen = self.got
            workflow.start_activity("any", self.seen, task_queue="nobody", start_to_close_timeout=timedelta(hours=1))

    @workflow.signal
    def poke(self) -> None:
        self.got += 1

    @workflow.query
    def count(self) -> int:
        return self.seen


class PokedMeanwhile(GuardedRunner):
    """Before a query is looked at, one more signal arrives: after the events that came with the query, and before the
    workflow task they are for begins, for the only place for such a task is taken by the query."""

    handle: WorkflowHandle
    loop: asyncio.AbstractEventLoop

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = super().create_instance(det)
        activate = instance.activate

        def poked(act: WorkflowActivation) -> WorkflowActivationCompletion:
            if any(job.HasField("query_workflow") for job in act.jobs) and not told:
                told.append(True)
                asyncio.run_coroutine_threadsafe(self.handle.signal("poke"), self.loop).result()
            return activate(act)

        told: list[bool] = []
        instance.activate = poked
        return instance


@asynccontextmanager
async def worker(client: Client, queue: str, runner: GuardedRunner) -> AsyncIterator[None]:
    """One place for tasks of workflows it has, one for tasks of others."""
    one = Worker(
        client,
        task_queue=queue,
        workflows=[Pokes],
        workflow_runner=runner,
        max_concurrent_workflow_tasks=2,
        max_concurrent_workflow_task_polls=2,
    )
    # A signal from within an activation may take its time on a busy machine; that is no deadlock.
    assert one._workflow_worker is not None
    one._workflow_worker._deadlock_timeout_seconds = None
    async with one:
        yield


def restrictions() -> SandboxRestrictions:
    return SandboxRestrictions.default.with_passthrough_all_modules()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_query_that_waited_for_a_worker_leaves_a_history_that_replays() -> None:
    """Which is handed out first, query or workflow task, is the server's choice: several tries, each must do."""
    with dev_server() as address:
        client = await connect(address)
        for _ in range(TRIES):
            queue = f"pokes-{uuid4().hex}"
            handle = await client.start_workflow("Pokes", id=queue, task_queue=queue)
            async with worker(client, queue, GuardedRunner(restrictions())):
                assert await ask(handle, "count", int) == 0
            question = asyncio.create_task(ask(handle, "count", int))
            await asyncio.sleep(0.5)  # nothing says that the server has it; where it does not, less is tried
            await handle.signal("poke")
            runner = PokedMeanwhile(restrictions())
            object.__setattr__(runner, "handle", handle)
            object.__setattr__(runner, "loop", asyncio.get_running_loop())
            async with worker(client, queue, runner):
                assert await question in (1, 2)
                while await ask(handle, "count", int) < 2:
                    await asyncio.sleep(0.1)
            history = await handle.fetch_history()
            await handle.terminate()
            replayer = Replayer(workflows=[Pokes], workflow_runner=GuardedRunner(restrictions()))
            await replayer.replay_workflow(history)
