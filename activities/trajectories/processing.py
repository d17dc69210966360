"""From the records of one execution to its stored trajectory: tree, selection, targets.

Only calls whose answer was delivered to its end are trained; failed, undelivered and open ones are not, and neither
are side calls. The result is a pure function of the records, the execution's seed and the burst's selection settings,
so a retry stores the same.
"""

import asyncio
import logging
from typing import Protocol

from sqlalchemy import Engine
from temporalio import activity

from activities.trajectories.artifact import TrajectoryTree, encode_trajectory
from activities.trajectories.branches import Reason, steps
from activities.trajectories.calls import load_calls
from activities.trajectories.growth import GrownTree, grow
from activities.trajectories.harvest import harvest
from activities.trajectories.selection import on_paths
from infra.objects import ObjectStore
from infra.records.executions import ExecutionRecords, Trajectory, execution_of
from workflows.messages.execution import ExecutionSpec, ProcessedExecution

_log = logging.getLogger(__name__)
UNMERGED_SHARE, UNMERGED_AT_LEAST = 0.5, 6
"""More unmerged calls than this share, and than that share of so many calls, is worth a warning."""


class RecordsEnd(Protocol):
    """The proxy: no further call, and every record durable when it returns. Idempotent; raises Transient."""

    async def end_execution(self, execution: str) -> None: ...


class ProcessingActivities:
    """Runs in the harness host."""

    def __init__(self, engine: Engine, objects: ObjectStore, proxy: RecordsEnd) -> None:
        self._engine, self._objects, self._proxy = engine, objects, proxy
        self._records = ExecutionRecords(engine)

    @activity.defn(name="process_execution")
    async def process_execution(self, spec: ExecutionSpec) -> ProcessedExecution:
        """Store the trajectory of an execution and its counts. Raises AuditFailure when records contradict."""
        await self._proxy.end_execution(execution_of(spec))
        return await asyncio.to_thread(self._process, spec)

    def _process(self, spec: ExecutionSpec) -> ProcessedExecution:
        execution = execution_of(spec)
        row = self._records.get(execution)
        if row is not None and row.processed is not None:
            return row.processed.processed
        with self._engine.connect() as connection:
            recorded = load_calls(connection, execution)
        grown = grow(execution, recorded, seed=spec.seed, selection=spec.selection)
        trajectory = harvest(grown)
        processed = summary(grown, trajectory)
        if processed.unmerged_calls > UNMERGED_SHARE * max(processed.calls, UNMERGED_AT_LEAST):
            _log.warning(
                "%s: %d of %d calls neither begin nor go on with a recorded history, which costs %.1f times the "
                "tokens; does something in its prompts change with every call?",
                execution,
                processed.unmerged_calls,
                processed.calls,
                processed.expanded_tokens / max(processed.unique_tokens, 1),
            )
        payload = self._objects.put(f"trajectories/{execution}.safetensors", encode_trajectory(trajectory))
        self._records.keep_trajectory(spec, Trajectory(payload=payload, processed=processed))
        return processed


def summary(grown: GrownTree, trajectory: TrajectoryTree) -> ProcessedExecution:
    """The counts; `calls` counts the finished ones of every role."""
    trained = trajectory.versions[trajectory.versions >= 0]
    apart = (Reason.EDITED, Reason.UNRELATED, Reason.TEMPLATE, Reason.TOOLS)
    return ProcessedExecution(
        calls=sum(call.state == "finished" for call in grown.tree.calls),
        paths=len(grown.chosen),
        target_tokens=trajectory.target_tokens,
        oldest_version=int(trained.min()) if len(trained) else None,
        newest_version=int(trained.max()) if len(trained) else None,
        candidates=len(grown.leaves),
        unique_tokens=sum(grown.tree.nodes[node].length for node in on_paths(grown.tree, grown.leaves)),
        expanded_tokens=sum(grown.tree.nodes[leaf.node].end for leaf in grown.leaves),
        unmerged_calls=sum(step.reason in apart for step in steps(grown.tree)),
    )
