"""Starting, cancelling and looking after AgentExecution workflows, through a client: they are nobody's children."""

import asyncio
from datetime import timedelta

from sqlalchemy import Engine
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.lookout import open_steps
from infra.records.executions import ExecutionRow, get_execution
from workflows.messages import ids
from workflows.messages.control import (
    CancelExecutions,
    ExecutionFate,
    FindSteps,
    FoundSteps,
    LaunchExecutions,
    SweepRoster,
    SweptRoster,
)
from workflows.messages.execution import EndReason, ExecutionSpec, Outcome
from workflows.messages.scheduling import OpenCell

_AT_ONCE = 16
_OVERALL_SECONDS = 30 * 24 * 3600


class ExecutionActivities:
    """Runs on the control queue."""

    def __init__(self, client: Client, engine: Engine) -> None:
        self._client, self._engine = client, engine

    @activity.defn(name="launch_executions")
    async def launch_executions(self, request: LaunchExecutions) -> None:
        """Start each by its fixed id; one that was ever started counts as started."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def launch(spec: ExecutionSpec) -> None:
            async with room:
                await self._launch(spec)

        await asyncio.gather(*(launch(spec) for spec in request.executions))

    async def _launch(self, spec: ExecutionSpec) -> None:
        name = ids.execution_id(spec.run, spec.burst, spec.group, spec.member)
        try:
            await self._client.start_workflow(
                "AgentExecution",
                spec,
                id=name,
                task_queue=ids.WORKFLOW_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                execution_timeout=timedelta(seconds=_OVERALL_SECONDS),
                static_summary=f"{spec.harness.name}: {spec.task.rsplit('/', 1)[-1]}",
            )
        except WorkflowAlreadyStartedError:
            return  # it ran and ended: its report is on the way, or the sweep finds it

    @activity.defn(name="open_cell")
    async def open_cell(self, request: OpenCell) -> None:
        """Start the workflow of a cell that has joined the run; one that runs goes on untouched."""
        await self._client.start_workflow(
            "Cell",
            request,
            id=ids.cell_workflow_id(request.run, request.spec.index),
            task_queue=ids.WORKFLOW_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"satellite {request.spec.index}",
        )

    @activity.defn(name="find_steps")
    async def find_steps(self, request: FindSteps) -> FoundSteps:
        """The steps that are open in the role changes of these cells."""
        return await open_steps(self._client, request.run, request.cells)

    @activity.defn(name="cancel_executions")
    async def cancel_executions(self, request: CancelExecutions) -> None:
        """Ask each to cancel; one that is gone is ignored, the sweep counts it."""
        for name in request.executions:
            try:
                await self._client.get_workflow_handle(name).cancel()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    @activity.defn(name="sweep_roster")
    async def sweep_roster(self, request: SweepRoster) -> SweptRoster:
        """Find those whose workflow is no longer open, with what the records know of them."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def look(name: str) -> ExecutionFate | None:
            async with room:
                return await self._fate(name)

        fates = await asyncio.gather(*(look(name) for name in request.executions))
        return SweptRoster(closed=tuple(fate for fate in fates if fate is not None))

    async def _fate(self, name: str) -> ExecutionFate | None:
        row = await asyncio.to_thread(self._row, name)
        try:
            description = await self._client.get_workflow_handle(name).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            if row is None or row.closed_at is None:
                return None  # its start is still being retried
            status = "past retention"
        else:
            if description.status in (None, WorkflowExecutionStatus.RUNNING):
                return None
            status = description.status.name.lower()
        outcome, reward = Outcome.NO_ARTIFACT, None
        if row is not None and row.outcome is not None:
            outcome, reward = Outcome(row.outcome), row.reward
        end = EndReason(row.end_reason) if row is not None and row.end_reason else EndReason.TERMINATED
        return ExecutionFate(execution=name, status=status, end=end, outcome=outcome, reward=reward)

    def _row(self, name: str) -> ExecutionRow | None:
        with self._engine.connect() as connection:
            return get_execution(connection, name)
