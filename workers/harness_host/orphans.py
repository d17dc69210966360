"""Executions whose workflow ended without a word (terminated, timed out): their harness is ended, their row closed.

Looks at every execution of this host that was prepared and not closed, and asks Temporal for its workflow. The
workflow alone decides while it is open.
"""

import asyncio
import logging

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.harness import HarnessActivities, HarnessHost
from infra.records.executions import execution_of
from infra.workspaces import ExecutionFolder
from workflows.messages.errors import GyreError
from workflows.messages.execution import (
    EndReason,
    Evaluation,
    ExecutionSpec,
    FinishExecution,
    HarnessRun,
    Outcome,
)

SWEEP_SECONDS = 10.0
_log = logging.getLogger(__name__)


class OrphanSweep:
    """Closes orphaned executions of one host."""

    def __init__(self, client: Client, host: HarnessHost, activities: HarnessActivities) -> None:
        self._client, self._host, self._activities = client, host, activities

    async def run(self, period_seconds: float = SWEEP_SECONDS) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(period_seconds)
            await self.sweep()

    async def sweep(self) -> list[str]:
        """Close every orphan; returns their ids. One that cannot be closed is logged, tried again at the next sweep,
        and holds up no other."""
        closed: list[str] = []
        for folder in ExecutionFolder.unclosed(self._host.workspaces):
            try:
                if folder.spec.exists():  # else it is being prepared
                    closed += await self._close(ExecutionSpec.model_validate_json(folder.spec.read_text()))
            except (GyreError, RPCError, OSError, ValueError) as error:
                _log.warning("sweep of %s: %s", folder.root, error)
        return closed

    async def _close(self, spec: ExecutionSpec) -> list[str]:
        name = execution_of(spec)
        if await self._is_open(name):
            return []
        row = await asyncio.to_thread(self._host.records.get, name)
        evaluation = row.evaluation if row is not None else None
        await self._activities.finish(
            FinishExecution(
                spec=spec,
                run=HarnessRun(end=EndReason.TERMINATED, detail="its workflow was ended from outside"),
                evaluation=evaluation or Evaluation(outcome=Outcome.NO_ARTIFACT, detail="terminated"),
            )
        )
        _log.info("closed %s, whose workflow is over", name)
        return [name]

    async def _is_open(self, workflow: str) -> bool:
        try:
            description = await self._client.get_workflow_handle(workflow).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return description.status is WorkflowExecutionStatus.RUNNING
