"""The executions table: one row from preparing to the close, which happens once.

Writes are idempotent: a repeated step finds what the first one wrote and changes nothing. The proxy alone writes
`first_call_at` and `model_calls`.
"""

import time
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from infra.records.schema import executions
from workflows.messages import ids
from workflows.messages.artifacts import ArtifactRef
from workflows.messages.base import Message
from workflows.messages.errors import Fenced
from workflows.messages.execution import (
    EndReason,
    Evaluation,
    ExecutionSpec,
    HarnessRun,
    Outcome,
    ProcessedExecution,
)


class Trajectory(Message):
    """What the Trajectory Processor made of an execution, and where it lies."""

    payload: ArtifactRef
    processed: ProcessedExecution


@dataclass(frozen=True)
class ExecutionRow:
    """A row as the harness host and the Trajectory Processor use it. Times in seconds since the epoch."""

    execution: str
    burst: str
    group_index: int
    member: int
    dispatch_version: int
    token_sha256: str
    attempt: int
    state: str
    workspace: str
    first_call_at: float | None
    closed_at: float | None
    end_reason: str | None
    outcome: str | None
    reward: float | None
    model_calls: int
    trajectory: dict | None
    detail: str | None
    evaluator: str | None

    @property
    def evaluation(self) -> Evaluation | None:
        """The score on record, if it was evaluated."""
        if self.outcome is None:
            return None
        return Evaluation(
            outcome=Outcome(self.outcome),
            reward=self.reward,
            detail=self.detail or "",
            evaluator=self.evaluator or "",
        )

    @property
    def processed(self) -> Trajectory | None:
        return None if self.trajectory is None else Trajectory.model_validate(self.trajectory)


_COLUMNS = [executions.c[name] for name in ExecutionRow.__dataclass_fields__]


def execution_of(spec: ExecutionSpec) -> str:
    """The execution's id: that of its workflow."""
    return ids.execution_id(spec.run, spec.burst, spec.group, spec.member)


class ExecutionRecords:
    """Reads and writes of the executions table. Thread-safe; every method is one transaction and blocks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, execution: str) -> ExecutionRow | None:
        with self._engine.connect() as connection:
            return get_execution(connection, execution)

    def open(self, spec: ExecutionSpec, *, token_sha256: str, workspace: str) -> ExecutionRow:
        """Insert the row of an execution that is about to run, or find the one there.

        Raises Fenced when the execution is closed already, or its row was opened with another token.
        """
        row = self._ensure(spec, token_sha256=token_sha256, workspace=workspace)
        if row.closed_at is not None:
            raise Fenced(f"{row.execution} is closed ({row.end_reason}); it cannot be prepared again")
        if row.token_sha256 != token_sha256:
            raise Fenced(f"{row.execution} was prepared with another token")
        return row

    def next_attempt(self, execution: str) -> int:
        """Count one more start of the harness; returns its number."""
        with self._engine.begin() as connection:
            connection.execute(
                update(executions).where(executions.c.execution == execution).values(attempt=executions.c.attempt + 1)
            )
            return connection.execute(
                select(executions.c.attempt).where(executions.c.execution == execution)
            ).scalar_one()

    def score(self, execution: str, evaluation: Evaluation) -> Evaluation:
        """Record the first evaluation; returns the one on record, which a later one never replaces."""
        with self._engine.begin() as connection:
            connection.execute(
                update(executions)
                .where(executions.c.execution == execution, executions.c.outcome.is_(None))
                .values(
                    outcome=evaluation.outcome,
                    reward=evaluation.reward,
                    detail=evaluation.detail,
                    evaluator=evaluation.evaluator,
                )
            )
            row = get_execution(connection, execution)
        return evaluation if row is None or row.evaluation is None else row.evaluation

    def keep_trajectory(self, spec: ExecutionSpec, trajectory: Trajectory) -> None:
        """Record where the trajectory lies; of an execution that was never prepared too."""
        self._ensure(spec, token_sha256="", workspace="")
        with self._engine.begin() as connection:
            connection.execute(
                update(executions)
                .where(executions.c.execution == execution_of(spec))
                .values(trajectory=trajectory.model_dump(mode="json"))
            )

    def close(self, spec: ExecutionSpec, run: HarnessRun, evaluation: Evaluation) -> bool:
        """Close the execution for good; False when it was closed before (nothing changes)."""
        self._ensure(spec, token_sha256="", workspace="")
        now = time.time()
        with self._engine.begin() as connection:
            closed = connection.execute(
                update(executions)
                .where(executions.c.execution == execution_of(spec), executions.c.closed_at.is_(None))
                .values(
                    state="closed",
                    ended_at=now,
                    closed_at=now,
                    harness_seconds=run.seconds,
                    end_reason=run.end,
                    outcome=evaluation.outcome,
                    reward=evaluation.reward,
                    detail=said(run, evaluation),
                    evaluator=evaluation.evaluator,
                )
            )
            return closed.rowcount == 1

    def _ensure(self, spec: ExecutionSpec, *, token_sha256: str, workspace: str) -> ExecutionRow:
        """The row of `spec`, inserted if it is missing."""
        execution = execution_of(spec)
        row = self.get(execution)
        if row is None:
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(executions).values(**_opened(spec, token_sha256, workspace)))
            except IntegrityError:
                pass  # another attempt of the same step was faster; its row is the one
            row = self.get(execution)
        if row is None:
            raise Fenced(f"{execution} has no row, and none can be inserted")
        return row


def said(run: HarnessRun, evaluation: Evaluation) -> str:
    """What is known beside the outcome, each word with whose it is: the harness' or its host's, the grader's."""
    if evaluation.detail == run.detail or evaluation.outcome is Outcome.NO_ARTIFACT:
        return evaluation.detail or run.detail
    words = (("harness", run.detail), ("grader", evaluation.detail))
    return "; ".join(f"{who}: {text}" for who, text in words if text)


def _opened(spec: ExecutionSpec, token_sha256: str, workspace: str) -> dict[str, object]:
    return {
        "execution": execution_of(spec),
        "run": spec.run,
        "burst": spec.burst,
        "group_index": spec.group,
        "member": spec.member,
        "purpose": spec.purpose,
        "task": spec.task,
        "harness": spec.harness.name,
        "client": spec.harness.client,
        "seed": spec.seed,
        "dispatch_version": spec.dispatch_version,
        "sampling": spec.sampling.model_dump(mode="json"),
        "call_limit": spec.limits.model_calls,
        "wall_seconds": spec.limits.wall_seconds,
        "token_sha256": token_sha256,
        "attempt": 1,
        "state": "open",
        "workspace": workspace,
        "prepared_at": time.time(),
        "model_calls": 0,
    }


def close_unreported(connection: Connection, execution: str) -> None:
    """Close the row of an execution whose workflow ended without a word (terminated); a score on record stays."""
    now = time.time()
    open_row = (executions.c.execution == execution) & executions.c.closed_at.is_(None)
    connection.execute(
        update(executions).where(open_row, executions.c.outcome.is_(None)).values(outcome=Outcome.NO_ARTIFACT)
    )
    connection.execute(
        update(executions)
        .where(open_row)
        .values(state="closed", ended_at=now, closed_at=now, end_reason=EndReason.TERMINATED)
    )


def get_execution(connection: Connection, execution: str) -> ExecutionRow | None:
    row = connection.execute(select(*_COLUMNS).where(executions.c.execution == execution)).one_or_none()
    return None if row is None else ExecutionRow(**row._mapping)
