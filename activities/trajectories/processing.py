"""From the records of one execution to its stored trajectory: tree, selection, targets.

Only calls whose answer was delivered to its end are trained; failed, undelivered and open ones are not, and neither
are side calls. The result is a pure function of the records and the execution's seed, so a retry stores the same.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from sqlalchemy import Engine
from temporalio import activity

from activities.trajectories.artifact import encode_trajectory
from activities.trajectories.roles import rank
from activities.trajectories.selection import select_paths
from activities.trajectories.tree import Call, Tree
from infra.objects import ObjectStore
from infra.records.calls import RecordedCall, calls_of
from infra.records.executions import ExecutionRecords, Trajectory, execution_of
from workflows.messages.execution import ExecutionSpec, ProcessedExecution


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
            recorded = calls_of(connection, execution)
        blob, processed = process(execution, recorded, seed=spec.seed)
        payload = self._objects.put(f"trajectories/{execution}.safetensors", blob)
        self._records.keep_trajectory(execution, Trajectory(payload=payload, processed=processed))
        return processed


def process(execution: str, recorded: Sequence[RecordedCall], *, seed: int) -> tuple[bytes, ProcessedExecution]:
    """The blob of an execution's chosen paths, and its counts; `calls` counts the finished ones of every role."""
    tree = Tree([_call(one) for one in recorded if is_trainable(one)])
    chosen = select_paths(tree.paths(), seed=f"{execution}/{seed}")
    blob = encode_trajectory(execution, chosen, tree.calls)
    versions = [one.path.versions[one.targets] for one in chosen]
    trained = np.concatenate([np.zeros(0, np.int64), *versions])
    return blob, ProcessedExecution(
        calls=sum(one.state == "finished" for one in recorded),
        paths=len(chosen),
        target_tokens=len(trained),
        oldest_version=int(trained.min()) if len(trained) else None,
        newest_version=int(trained.max()) if len(trained) else None,
    )


def is_trainable(call: RecordedCall) -> bool:
    """Whether a call's output can be a target: delivered whole, of a trained role, with something before it."""
    return call.state == "finished" and rank(call.role) is not None and bool(call.prompt_ids and call.output_ids)


def _call(recorded: RecordedCall) -> Call:
    return Call(
        call=recorded.call,
        sequence=recorded.sequence,
        role=recorded.role,
        prompt=np.asarray(recorded.prompt_ids, dtype=np.int32),
        output=np.asarray(recorded.output_ids, dtype=np.int32),
        logprobs=np.asarray(recorded.output_logprobs, dtype=np.float32),
        versions=np.asarray(recorded.versions, dtype=np.int64),
    )
