"""A run for the workflows: the doubles of everything below them. Temporal itself is real.

`FakeWorld` serves every step of `workflows.steps` (checked against the table as the real workers are), starts the
run's long-lived workflows, and lets a test start bursts, kill cells and look at the books.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.executions import ExecutionActivities
from infra.records.database import open_database
from infra.records.executions import ExecutionRecords
from infra.temporal.client import ask
from infra.temporal.failures import FailureInterceptor
from tests.workflows.control_steps import FIRST, ControlSteps
from tests.workflows.fake_cell import BEAT, FakeCell
from workers.registration import activities_of
from workflows.books import SchedulerState
from workflows.cell import Cell, CellState
from workflows.cell_table import CellEntry
from workflows.messages import ids
from workflows.messages.burst import BurstReport, BurstSpec
from workflows.messages.fleet import CellSpec
from workflows.messages.scheduling import RunSpec
from workflows.messages.transition import Resolution
from workflows.scheduler import Scheduler
from workflows.steps import Queue


class FakeWorld(ControlSteps):
    """One run's world."""

    def __init__(self, client: Client, run: str, folder: Path, slots: tuple[int, ...]) -> None:
        self.engine = open_database(f"sqlite:///{folder / 'records.db'}", create=True)
        super().__init__(ExecutionRecords(self.engine))
        self.client, self.run = client, run
        self.specs = tuple(CellSpec(index=index, engine="paced", slots=count) for index, count in enumerate(slots))
        self.executions = ExecutionActivities(client, self.engine)
        self.run_settings: dict[str, Any] = {}
        self.past: list[FakeCell] = []
        self.boots: Counter[int] = Counter()
        self.workers: list[Worker] = []
        self.serving: list[asyncio.Task[None]] = []

    # --- life

    async def start(self) -> None:
        """Serve control and harness queues, start the run's long-lived workflows, boot every cell."""
        self.serve(ids.control_queue(self.run), activities_of(Queue.CONTROL, self.executions, self))
        self.serve(ids.harness_queue(self.run), activities_of(Queue.HARNESS, self))
        self.serve(ids.watch_queue(self.run), activities_of(Queue.WATCH, self))
        await self.start_run()
        for spec in self.specs:
            await self.boot(spec.index)
        await self.until(lambda state: self.all_serving(state))

    def serve(self, queue: str, activities: list[Callable[..., Any]]) -> Worker:
        worker = Worker(
            self.client,
            task_queue=queue,
            activities=activities,
            interceptors=[FailureInterceptor()],
            max_concurrent_activities=200,
            max_heartbeat_throttle_interval=BEAT,
        )
        self.workers.append(worker)
        self.serving.append(asyncio.create_task(worker.run()))
        return worker

    async def start_run(self) -> None:
        settings = {"sweep_seconds": 1.0, **self.run_settings}
        spec = RunSpec(run=self.run, cells=self.specs, weights=FIRST, **settings)
        state = SchedulerState(spec=spec, weights=FIRST, cells=tuple(CellEntry(spec=cell) for cell in self.specs))
        queue = ids.WORKFLOW_QUEUE
        await self.client.start_workflow(Scheduler.run, state, id=ids.scheduler_id(self.run), task_queue=queue)
        for cell in self.specs:
            name = ids.cell_workflow_id(self.run, cell.index)
            start = CellState(run=self.run, spec=cell, weights=FIRST, reboots=spec.reboots)
            await self.client.start_workflow(Cell.run, start, id=name, task_queue=queue)

    async def boot(self, index: int) -> FakeCell:
        """A new worker of this cell; the one before is dead from now on."""
        if index in self.cells:
            await self.cells[index].die()
            self.past.append(self.cells[index])
        self.boots[index] += 1
        cell = self.cells[index] = FakeCell(self, index, self.boots[index])
        await cell.start()
        return cell

    async def close(self) -> None:
        """End every workflow and worker of this run."""
        self.faults.clear()
        self.faults.closing.set()
        query = f"WorkflowId STARTS_WITH '{self.run}/' AND ExecutionStatus = 'Running'"
        async for found in self.client.list_workflows(query):
            with contextlib.suppress(RPCError):
                await self.client.get_workflow_handle(found.id).terminate()
        cells = [*self.cells.values(), *self.past]
        await asyncio.gather(*(worker.shutdown() for worker in self.workers), *(cell.stop() for cell in cells))
        await asyncio.gather(*self.serving, return_exceptions=True)
        self.engine.dispose()

    # --- what tests do and see

    def burst_spec(self, name: str = "first", **changes: Any) -> BurstSpec:
        plain: dict[str, Any] = {
            "groups_per_step": 2,
            "executions_per_group": 2,
            "steps": 1,
            "policy": {"hold_seconds": 0},
            "limits": {"wall_seconds": 30},
        }
        return BurstSpec.model_validate({"run": self.run, "name": name, "tasks": "tasks", **plain, **changes})

    async def start_burst(self, name: str = "first", **changes: Any) -> WorkflowHandle[Any, BurstReport]:
        return await self.client.start_workflow(
            "Burst",
            self.burst_spec(name, **changes),
            id=ids.burst_id(self.run, name),
            task_queue=ids.WORKFLOW_QUEUE,
            result_type=BurstReport,
        )

    async def run_campaign(self, name: str = "many", bursts: int = 2, **changes: Any) -> list[BurstReport]:
        """A campaign from start to end; the reports of its bursts."""
        burst = self.burst_spec("any", **changes).model_dump(mode="json")
        campaign = {"run": self.run, "name": name, "bursts": bursts, "burst": burst}
        report = await self.client.execute_workflow(
            "Campaign", campaign, id=ids.campaign_id(self.run, name), task_queue=ids.WORKFLOW_QUEUE
        )
        return [BurstReport.model_validate(one) for one in report["bursts"]]

    def noted(self, kind: str) -> list[Any]:
        """Entries of the ledger of this kind, in order."""
        return [entry for entry in self.ledger.values() if entry.kind == kind]

    async def whole_ledger(self) -> None:
        """Wait until what the Scheduler has noted so far is written: it writes beside everything else it does."""
        last = (await self.state()).entries
        await self.eventually(lambda: f"{self.run}/{last}" in self.ledger)

    async def start_in_order(self, name: str, **changes: Any) -> WorkflowHandle[Any, BurstReport]:
        """Start a burst and wait until the Scheduler knows it: the next one surely queues behind it."""
        burst = await self.start_burst(name, **changes)
        await self.until(lambda state: name in names_of(state))
        return burst

    def handle(self, workflow_id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(workflow_id)

    @property
    def scheduler(self) -> WorkflowHandle[Any, Any]:
        return self.handle(ids.scheduler_id(self.run))

    async def state(self) -> SchedulerState:
        return await ask(self.scheduler, "state", SchedulerState)

    async def shown(self, workflow_id: str) -> str:
        """The details that the web UI shows of a workflow."""
        query = ask(self.handle(workflow_id), "__temporal_workflow_metadata", WorkflowMetadata)
        return (await query).current_details

    async def until(self, holds: Callable[[SchedulerState], Any], seconds: float = 200) -> SchedulerState:
        """Wait until the Scheduler's books satisfy `holds`."""
        async with asyncio.timeout(seconds):
            while True:
                with contextlib.suppress(RPCError):  # no worker at the moment
                    state = await self.state()
                    if holds(state):
                        return state
                await asyncio.sleep(0.1)

    async def eventually(self, holds: Callable[[], Any], seconds: float = 200) -> None:
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.05)

    async def blocked(self, workflow_id: str) -> list[str]:
        """Wait until a step is blocked there: whoever parks says so first. What is blocked."""
        async with asyncio.timeout(200):
            while True:
                with contextlib.suppress(RPCError):  # it may not have begun yet
                    if found := await ask(self.handle(workflow_id), "blocked_steps", list[str]):
                        return found
                await asyncio.sleep(0.1)

    async def resolve(self, workflow_id: str, resolution: Resolution) -> str:
        """Decide about a step as soon as it is blocked."""
        await self.blocked(workflow_id)
        return await self.handle(workflow_id).execute_update("resolve_step", resolution)

    async def retired(self, cell: int) -> None:
        """Wait until the workflow of a cell that has left has come to its own end: it tells the Scheduler before."""
        await self.handle(ids.cell_workflow_id(self.run, cell)).result()  # raises when it ended another way

    async def status(self, workflow_id: str) -> WorkflowExecutionStatus:
        description = await self.handle(workflow_id).describe()
        return description.status or WorkflowExecutionStatus.RUNNING

    def all_serving(self, state: SchedulerState) -> bool:
        return all(entry.role == "rollout" and entry.version == state.weights.version for entry in state.cells)


def names_of(state: SchedulerState) -> list[str]:
    """The bursts the Scheduler knows: the one that runs, then those that wait, in order."""
    return [*([state.burst.name] if state.burst else []), *(waiting.spec.name for waiting in state.waiting)]
