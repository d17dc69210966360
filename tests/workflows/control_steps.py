"""The double of every step on the control and harness queues, on plain lists.

It keeps the few facts that show whether the workflows are right, and a list of `problems`: what no order of events may
ever bring about (a micro-step summed twice, groups trained twice, a version that goes backwards).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from temporalio import activity

from infra.records.executions import ExecutionRecords, execution_of
from tests.workflows.fake_cell import FakeCell
from tests.workflows.faults import Faults, step
from workflows.messages import ids
from workflows.messages.artifacts import ArtifactRef
from workflows.messages.batch import CommitBatch, OpenedBatch
from workflows.messages.burst import Purpose
from workflows.messages.control import (
    MeasurePipeline,
    PipelineSample,
    RecordCore,
    RecordLedger,
    RecordPublished,
    ShareSlots,
    SlotsInUse,
)
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
from workflows.messages.scheduling import Weights
from workflows.messages.tasks import SelectedTasks, SelectTasks
from workflows.messages.transition import TransitionReport

FIRST = Weights(version=0, checksum="base")


class ControlSteps:
    """What the steps below a run's workflows did, and how they do it.

    `harness_seconds`, `micro_step_seconds` and `may_finish` are looked at all the time: a test holds work back and lets
    it go on. `told_seconds`: what a cell says of the seconds that a micro-step took.
    """

    def __init__(self, rows: ExecutionRecords) -> None:
        self.rows = rows
        self.faults = Faults()
        self.calls: list[tuple[str, Any]] = []
        self.problems: list[str] = []
        self.cells: dict[int, FakeCell] = {}
        self.doors: dict[int, int | None] = {}
        self.plans: dict[str, ReroutePlan] = {}
        self.tasks = [f"/tasks/{number:03d}" for number in range(1000)]
        self.harness_seconds: Callable[[ExecutionSpec], float] = lambda spec: 0.0
        self.reward: Callable[[ExecutionSpec], float] = lambda spec: float(spec.member % 2)
        self.micro_steps = 2
        self.micro_step_seconds = 0.0
        self.may_finish: Callable[[FakeCell], bool] = lambda cell: True
        self.closed: Counter[str] = Counter()
        self.outcomes: dict[str, Evaluation] = {}
        self.admitted: list[AdmittedGroup] = []
        self.opened: list[str] = []
        self.applied: dict[str, list[int]] = {}
        self.published: list[int] = []
        self.shares: list[ShareSlots] = []
        self.told_seconds: Callable[[float], float] = lambda seconds: seconds
        self.commits: dict[str, CommitBatch] = {}
        self.committed = FIRST
        self.core, self.hand_overs = 0, list[RecordCore]()
        self.combined: dict[str, int] = {}
        self.transitions: list[TransitionReport] = []
        self.ledger: dict[str, Any] = {}

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def called(self, step: str) -> list[Any]:
        return [argument for name, argument in self.calls if name == step]

    def running(self) -> list[str]:
        """Executions whose harness was started and which are not closed."""
        names = [execution_of(spec) for spec in self.called("run_harness")]
        return [name for name in names if not self.closed[name]]

    async def perform(self, name: str, work: Callable[..., Any], argument: Any) -> Any:
        """The frame of every step: log, misbehave as planned, work."""
        self.calls.append((name, argument))
        fault = await self.faults.before(name, argument)
        result = await work(self, argument)
        if fault is not None and fault.after:
            await self.faults.strike(fault)
        return result

    # --- control queue

    @step
    async def select_tasks(self, request: SelectTasks) -> SelectedTasks:
        if request.tasks != "tasks":
            raise InvalidSpec(f"no task set {request.tasks}", field="tasks")
        if request.purpose is Purpose.EVALUATE:
            return SelectedTasks(tasks=tuple(self.tasks[: request.count]), position=request.position)
        last = request.position + request.count
        return SelectedTasks(tasks=tuple(self.tasks[request.position : last]), position=last)

    @step
    async def record_ledger(self, request: RecordLedger) -> None:
        for entry in request.entries:
            self.ledger[entry.token] = entry

    @step
    async def measure_pipeline(self, request: MeasurePipeline) -> PipelineSample:
        busy = {cell: float(self.cells[cell].held) for cell in request.cells}
        return PipelineSample(at=time.time(), training=busy)

    @step
    async def record_published(self, request: RecordPublished) -> None:
        if self.published and request.version < self.published[-1]:
            self.problem(f"published version {request.version} after {self.published[-1]}")
        self.published.append(request.version)

    @step
    async def record_core(self, request: RecordCore) -> None:
        if self.hand_overs and request.change <= self.hand_overs[-1].change:
            self.problem(f"hand-over {request.change} recorded after {self.hand_overs[-1].change}")
        self.core = request.cell
        self.hand_overs.append(request)

    @step
    async def record_transition(self, report: TransitionReport) -> None:
        self.transitions.append(report)

    @step
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

    @step
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

    @step
    async def record_batch_opened(self, opened: OpenedBatch) -> None:
        self.opened.append(opened.batch)

    @step
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

    @step
    async def register_engine(self, entry: EngineEntry) -> None:
        self.doors[entry.cell] = None

    @step
    async def change_door(self, change: DoorChange) -> None:
        index = int(change.engine.removeprefix("cell-"))
        cell = self.cells[index]
        if change.boot_epoch < cell.boot:
            return
        if change.open and (cell.engine is None or cell.engine.version != change.version):
            self.problem(f"door of cell {index} opened at version {change.version}, the engine has {cell.engine}")
        self.doors[index] = change.version if change.open else None

    @step
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

    @step
    async def cancel_requests(self, request: CancelRequest) -> CancelResult:
        self.doors[int(request.engine.removeprefix("cell-"))] = None
        return CancelResult(requests_moved=1, still_running=0)

    @step
    async def announce_handoff(self, done: HandoffDone) -> None:
        pass

    # --- harness host

    @step
    async def share_slots(self, share: ShareSlots) -> SlotsInUse:
        if not self.shares or share.change > self.shares[-1].change:
            self.shares.append(share)
        return SlotsInUse(harness=min(share.harness, len(self.running())), evaluator=0)

    @step
    async def prepare_workspace(self, spec: ExecutionSpec) -> PreparedWorkspace:
        return PreparedWorkspace(workspace="/w", prepared=True)

    @step
    async def run_harness(self, spec: ExecutionSpec) -> HarnessRun:
        begun = time.monotonic()
        while (left := begun + self.harness_seconds(spec) - time.monotonic()) > 0:
            activity.heartbeat()
            await asyncio.sleep(min(left, 0.2))
        return HarnessRun(end=EndReason.SUBMITTED, model_calls=3, seconds=time.monotonic() - begun)

    @step
    async def evaluate_workspace(self, spec: ExecutionSpec) -> Evaluation:
        return Evaluation(outcome=Outcome.SCORED, reward=self.reward(spec), seconds=0.01)

    @step
    async def process_execution(self, spec: ExecutionSpec) -> ProcessedExecution:
        return ProcessedExecution(calls=3, paths=1, target_tokens=10, oldest_version=0, newest_version=0)

    @step
    async def finish_execution(self, finish: FinishExecution) -> None:
        name = execution_of(finish.spec)
        self.rows.close(finish.spec, finish.run, finish.evaluation)
        self.closed[name] += 1
        self.outcomes.setdefault(name, finish.evaluation)
