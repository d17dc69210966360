"""The double of everything below the workflows: control steps, harness host, cells. Temporal itself is real.

`FakeWorld` implements every step of `workflows.steps` by name (checked against the table as the real workers are).
It keeps the few facts that show whether the workflows are right, and a list of `problems`: what no order of events
may ever bring about (a micro-step summed twice, memory held twice, a version that goes backwards).
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.executions import ExecutionActivities
from infra.records.database import open_database
from infra.records.executions import ExecutionRecords
from infra.temporal.failures import FailureInterceptor
from tests.workflows.fake_cell import FakeCell
from tests.workflows.faults import Faults
from workers.registration import activities_of
from workflows.books import SchedulerState
from workflows.cell import Cell, CellState
from workflows.cell_table import CellEntry
from workflows.messages import ids
from workflows.messages.artifacts import ArtifactRef
from workflows.messages.batch import CommitBatch, OpenedBatch
from workflows.messages.burst import BurstReport, BurstSpec, Purpose
from workflows.messages.control import RecordLedger, RecordPublished
from workflows.messages.errors import InvalidSpec, VersionMismatch
from workflows.messages.execution import (
    EndReason,
    Evaluation,
    ExecutionSpec,
    FinishExecution,
    HarnessRun,
    Outcome,
    PreparedWorkspace,
    ProcessedExecution,
)
from workflows.messages.fleet import CellSpec
from workflows.messages.group import AdmitGroup, AdmittedGroup, MicroStep, NoSignal, PackedGroup, PackGroup
from workflows.messages.routing import (
    CancelRequest,
    CancelResult,
    DoorChange,
    EngineEntry,
    HandoffDone,
    Move,
    ReroutePlan,
    RerouteRequest,
)
from workflows.messages.scheduling import RunSpec, Weights
from workflows.messages.tasks import SelectedTasks, SelectTasks
from workflows.messages.transition import TransitionReport
from workflows.scheduler import Scheduler
from workflows.steps import Queue

FIRST = Weights(version=0, checksum="base")


class FakeWorld:
    """One run's world."""

    def __init__(self, client: Client, run: str, folder: Path, slots: tuple[int, ...]) -> None:
        self.client, self.run = client, run
        self.specs = tuple(CellSpec(index=index, engine="paced", slots=count) for index, count in enumerate(slots))
        self.engine = open_database(f"sqlite:///{folder / 'records.db'}", create=True)
        self.executions = ExecutionActivities(client, self.engine)
        self.rows = ExecutionRecords(self.engine)
        self.faults = Faults()
        self.calls: list[tuple[str, Any]] = []
        self.problems: list[str] = []
        self.cells: dict[int, FakeCell] = {}
        self.past: list[FakeCell] = []
        self.boots: Counter[int] = Counter()
        self.doors: dict[int, int | None] = {}
        self.plans: dict[str, ReroutePlan] = {}
        self.tasks = [f"/tasks/{number:03d}" for number in range(1000)]
        self.harness_seconds: Callable[[ExecutionSpec], float] = lambda spec: 0.0
        self.reward: Callable[[ExecutionSpec], float] = lambda spec: float(spec.member % 2)
        self.micro_step_seconds = 0.0
        self.micro_steps = 2
        self.closed: Counter[str] = Counter()
        self.outcomes: dict[str, Evaluation] = {}
        self.admitted: list[AdmittedGroup] = []
        self.opened: list[str] = []
        self.applied: dict[str, list[int]] = {}
        self.published: list[int] = []
        self.commits: dict[str, CommitBatch] = {}
        self.committed = FIRST
        self.transitions: list[TransitionReport] = []
        self.ledger: dict[str, Any] = {}
        self.workers: list[Worker] = []
        self.serving: list[asyncio.Task[None]] = []

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def called(self, step: str) -> list[Any]:
        return [argument for name, argument in self.calls if name == step]

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
        )
        self.workers.append(worker)
        self.serving.append(asyncio.create_task(worker.run()))
        return worker

    async def start_run(self, sweep_seconds: float = 1.0) -> None:
        spec = RunSpec(run=self.run, cells=self.specs, weights=FIRST, sweep_seconds=sweep_seconds)
        state = SchedulerState(spec=spec, weights=FIRST, cells=tuple(CellEntry(spec=cell) for cell in self.specs))
        queue = ids.WORKFLOW_QUEUE
        await self.client.start_workflow(Scheduler.run, state, id=ids.scheduler_id(self.run), task_queue=queue)
        for cell in self.specs:
            name = ids.cell_workflow_id(self.run, cell.index)
            start = CellState(run=self.run, spec=cell, weights=FIRST)
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

    def handle(self, workflow_id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(workflow_id)

    @property
    def scheduler(self) -> WorkflowHandle[Any, Any]:
        return self.handle(ids.scheduler_id(self.run))

    async def state(self) -> SchedulerState:
        return await self.scheduler.query("state", result_type=SchedulerState)

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

    async def status(self, workflow_id: str) -> WorkflowExecutionStatus:
        description = await self.handle(workflow_id).describe()
        return description.status or WorkflowExecutionStatus.RUNNING

    def all_serving(self, state: SchedulerState) -> bool:
        return all(entry.role == "rollout" and entry.version == state.weights.version for entry in state.cells)

    def running(self) -> list[str]:
        """Executions whose harness was started and which are not closed."""
        names = [execution_of(spec) for spec in self.called("run_harness")]
        return [name for name in names if not self.closed[name]]

    # --- control steps

    async def select_tasks(self, request: SelectTasks) -> SelectedTasks:
        if request.tasks != "tasks":
            raise InvalidSpec(f"no task set {request.tasks}", field="tasks")
        if request.purpose is Purpose.EVALUATE:
            return SelectedTasks(tasks=tuple(self.tasks[: request.count]), position=request.position)
        last = request.position + request.count
        return SelectedTasks(tasks=tuple(self.tasks[request.position : last]), position=last)

    async def record_ledger(self, request: RecordLedger) -> None:
        for entry in request.entries:
            self.ledger[entry.token] = entry

    async def record_published(self, request: RecordPublished) -> None:
        if self.published and request.version < self.published[-1]:
            self.problem(f"published version {request.version} after {self.published[-1]}")
        self.published.append(request.version)

    async def record_transition(self, report: TransitionReport) -> None:
        self.transitions.append(report)

    async def admit_group(self, request: AdmitGroup) -> AdmittedGroup:
        for known in self.admitted:
            if (known.burst, known.group) == (request.burst, request.group):
                return known
        scored = [self.outcomes[name] for name in request.executions if name in self.outcomes]
        rewards = [done.reward for done in scored if done.outcome is Outcome.SCORED and done.reward is not None]
        no_signal = None
        if len(rewards) < 2:
            no_signal = NoSignal.TOO_FEW_VALID
        elif len(set(rewards)) == 1:
            no_signal = NoSignal.EQUAL_REWARDS
        admitted = AdmittedGroup(
            burst=request.burst,
            group=request.group,
            sequence=len(self.admitted) + 1,
            valid=len(rewards),
            no_signal=no_signal,
            target_tokens=10 * len(rewards),
            mean_reward=sum(rewards) / len(rewards) if rewards else None,
            version=request.version,
            staleness=0.0,
        )
        self.admitted.append(admitted)
        return admitted

    async def pack_group(self, request: PackGroup) -> PackedGroup:
        name = ids.group_id(request.burst, request.group)
        payload = ArtifactRef(uri=f"packed/{name}.safetensors", sha256="0" * 64, bytes=1)
        steps = tuple(
            MicroStep(
                batch=request.batch,
                index=request.first_index + number,
                group=name,
                payload=payload,
                tokens=20,
                target_tokens=10,
            )
            for number in range(self.micro_steps)
        )
        return PackedGroup(group=name, micro_steps=steps)

    async def record_batch_opened(self, opened: OpenedBatch) -> None:
        self.opened.append(opened.batch)

    async def commit_batch(self, commit: CommitBatch) -> None:
        if commit.batch in self.commits:
            return
        if commit.before != self.committed:
            raise VersionMismatch(f"{commit.batch} starts from {commit.before}, committed is {self.committed}")
        accepted = [done.index for done in commit.accepted]
        summed = self.applied.get(commit.batch, [])
        if accepted != summed:
            self.problem(f"{commit.batch}: the update sums {summed}, the ledger says {accepted}")
        if accepted != list(range(len(accepted))):
            self.problem(f"{commit.batch}: accepted {accepted} is not every micro-step once")
        twice = {group for other in self.commits.values() for group in other.groups} & set(commit.groups)
        if twice:
            self.problem(f"{commit.batch}: groups trained twice: {sorted(twice)}")
        self.commits[commit.batch], self.committed = commit, commit.after

    async def register_engine(self, entry: EngineEntry) -> None:
        self.doors[entry.cell] = None

    async def change_door(self, change: DoorChange) -> None:
        index = int(change.engine.removeprefix("cell-"))
        cell = self.cells[index]
        if change.boot_epoch < cell.boot:
            return
        if change.open and (cell.engine is None or cell.engine.version != change.version):
            self.problem(f"door of cell {index} opened at version {change.version}, the engine has {cell.engine}")
        self.doors[index] = change.version if change.open else None

    async def reroute_executions(self, request: RerouteRequest) -> ReroutePlan:
        if request.lease not in self.plans:
            leaving = int(request.engine.removeprefix("cell-"))
            self.doors[leaving] = None
            homes = [index for index, version in sorted(self.doors.items()) if version is not None]
            moves = [
                Move(execution=name, destination=ids.engine_id(homes[0]) if homes else "", in_flight=True)
                for name in self.running()
            ]
            self.plans[request.lease] = ReroutePlan(lease=request.lease, moves=tuple(moves))
        return self.plans[request.lease]

    async def cancel_requests(self, request: CancelRequest) -> CancelResult:
        self.doors[int(request.engine.removeprefix("cell-"))] = None
        return CancelResult(requests_moved=1, still_running=0)

    async def announce_handoff(self, done: HandoffDone) -> None:
        pass

    # --- harness host

    async def prepare_workspace(self, spec: ExecutionSpec) -> PreparedWorkspace:
        return PreparedWorkspace(workspace="/w", prepared=True)

    async def run_harness(self, spec: ExecutionSpec) -> HarnessRun:
        left = self.harness_seconds(spec)
        while left > 0:
            activity.heartbeat()
            await asyncio.sleep(min(left, 0.3))
            left -= 0.3
        return HarnessRun(end=EndReason.SUBMITTED, model_calls=3)

    async def evaluate_workspace(self, spec: ExecutionSpec) -> Evaluation:
        return Evaluation(outcome=Outcome.SCORED, reward=self.reward(spec))

    async def process_execution(self, spec: ExecutionSpec) -> ProcessedExecution:
        return ProcessedExecution(calls=3, paths=1, target_tokens=10, oldest_version=0, newest_version=0)

    async def finish_execution(self, finish: FinishExecution) -> None:
        name = execution_of(finish.spec)
        self.rows.close(finish.spec, finish.run, finish.evaluation)
        self.closed[name] += 1
        self.outcomes.setdefault(name, finish.evaluation)


def execution_of(spec: ExecutionSpec) -> str:
    return ids.execution_id(spec.run, spec.burst, spec.group, spec.member)


_STEPS = """
select_tasks record_ledger record_published record_transition admit_group pack_group record_batch_opened
commit_batch register_engine change_door reroute_executions cancel_requests announce_handoff prepare_workspace
run_harness evaluate_workspace process_execution finish_execution
"""


def _step(name: str) -> Any:
    work = getattr(FakeWorld, name)

    async def run(self, argument: Any) -> Any:
        self.calls.append((name, argument))
        fault = await self.faults.before(name, argument)
        result = await work(self, argument)
        if fault is not None and fault.after:
            await self.faults.strike(fault)
        return result

    run.__name__ = run.__qualname__ = name
    kinds = work.__annotations__
    run.__annotations__ = {"argument": next(kinds[key] for key in kinds if key != "return"), "return": kinds["return"]}
    return activity.defn(name=name)(run)


for _name in _STEPS.split():
    setattr(FakeWorld, _name, _step(_name))


@asynccontextmanager
async def watching(world: FakeWorld) -> AsyncIterator[list[tuple[int, int, int]]]:
    """Looks at the counters all the time: 0 <= f <= p <= d, and none ever falls."""
    seen: list[tuple[int, int, int]] = []

    async def look() -> None:
        while True:
            try:
                books = (await world.state()).accounts
            except RPCError:  # no worker at the moment
                await asyncio.sleep(0.2)
                continue
            now = (books.dispatched, books.launched, books.finished)
            if not 0 <= now[2] <= now[1] <= now[0]:
                world.problem(f"counters out of order: d, p, f = {now}")
            if seen and any(new < old for new, old in zip(now, seen[-1], strict=True)):
                world.problem(f"counters fell from {seen[-1]} to {now}")
            if not seen or now != seen[-1]:
                seen.append(now)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(look())
    try:
        yield seen
        await asyncio.sleep(0.1)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def history_of(client: Client, workflow_id: str, run_id: str | None = None) -> dict[str, Any]:
    history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    return json.loads(history.to_json())
