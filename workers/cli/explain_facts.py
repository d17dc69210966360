"""Everything on record about one execution's way into a gradient, and what decided it."""

from collections import Counter
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, Engine, Row, func, select

from infra.micro_steps import PackedMicroStep, decode
from infra.objects import ObjectStore
from infra.records.groups import GroupMember, GroupRow, get_group
from infra.records.schema import batches, calls, claims, executions, micro_steps
from workflows.messages import ids
from workflows.messages.artifacts import ArtifactRef
from workflows.messages.base import Message
from workflows.messages.batch import Figures
from workflows.messages.errors import InvalidInput
from workflows.messages.execution import ProcessedExecution
from workflows.messages.group import NoSignal

NO_SIGNAL = {
    NoSignal.EQUAL_REWARDS: "all valid rewards of its group are equal, so nothing is better than the rest",
    NoSignal.TOO_FEW_VALID: "its group has fewer than two valid executions to compare",
    NoSignal.NO_TARGETS: "no execution of its group has a target token",
}


class MicroStepFact(Message):
    """What one micro-step holds of the execution. `calls`: call -> targets of it. `counted`: the attempt, cell and boot
    epoch whose gradient the update summed; None until somebody claimed it."""

    index: int
    layout: str
    tokens: int
    targets: int
    paths: tuple[str, ...]
    calls: dict[str, int]
    sha256: str
    counted: str | None


class GroupFact(Message):
    """The group at admission, and the execution's place in it."""

    group: str
    sequence: int
    admitted_version: int
    valid: int
    no_signal: str | None
    rewards: tuple[float | None, ...]
    mean: float | None
    deviation: float | None = Field(description="over valid executions, ddof 1")
    advantage: float | None
    left_out: str | None
    age: int | None = Field(description="versions from its oldest token, or its dispatch, to the admission")


class BatchFact(Message):
    """`unreadable`: micro-steps of the group whose payload is gone or is none. `figures`: what the update measured."""

    batch: str
    version_before: int
    version_after: int | None
    committed: bool
    valid_executions: int | None
    micro_steps: tuple[MicroStepFact, ...]
    unreadable: tuple[int, ...] = ()
    figures: Figures = {}


class Explanation(Message):
    """`trained` and `why` are the answer, the rest is what it rests on."""

    execution: str
    trained: bool
    why: str
    task: str
    harness: str
    end: str | None
    outcome: str | None
    reward: float | None
    detail: str
    evaluator: str
    attempt: int
    dispatch_version: int
    calls: dict[str, int]
    processed: ProcessedExecution | None
    trajectory_sha256: str | None
    group: GroupFact | None
    batch: BatchFact | None

    @property
    def target_tokens(self) -> int:
        return 0 if self.batch is None else sum(step.targets for step in self.batch.micro_steps)


def explain_execution(engine: Engine, objects: ObjectStore, execution: str) -> Explanation:
    """The explanation from records and payloads alone."""
    with engine.connect() as connection:
        row = connection.execute(select(executions).where(executions.c.execution == execution)).one()
        group = get_group(connection, ids.group_id(row.burst, row.group_index))
        member = next((one for one in group.members if one.execution == execution), None) if group else None
        stored = row.trajectory or {}
        processed = ProcessedExecution.model_validate(stored["processed"]) if stored else None
        group_fact = _group(group, member) if group and member else None
        batch_fact = _batch(connection, objects, group, execution) if group else None
        answer = verdict(row, processed, group_fact, batch_fact)
        return Explanation(
            execution=execution,
            trained=answer[0],
            why=answer[1],
            task=row.task.rsplit("/", 1)[-1],
            harness=f"{row.harness} ({row.client})",
            end=row.end_reason,
            outcome=row.outcome,
            reward=row.reward,
            detail=row.detail or "",
            evaluator=row.evaluator or "",
            attempt=row.attempt,
            dispatch_version=row.dispatch_version,
            calls=_calls(connection, execution),
            processed=processed,
            trajectory_sha256=ArtifactRef.model_validate(stored["payload"]).sha256 if stored else None,
            group=group_fact,
            batch=batch_fact,
        )


def verdict(
    row: Row[Any], processed: ProcessedExecution | None, group: GroupFact | None, batch: BatchFact | None
) -> tuple[bool, str]:
    """Whether it was trained, and the first thing that decided it."""
    if row.purpose != "train":
        return False, "evaluation executions are never trained"
    if row.closed_at is None:
        return False, "it still runs"
    if group is None:
        return False, "its group is not admitted yet: other executions of it are open"
    if group.left_out is not None:
        return False, f"left out at admission: {group.left_out}"
    if group.no_signal is not None:
        return False, NO_SIGNAL.get(NoSignal(group.no_signal), group.no_signal)
    if processed is None or processed.target_tokens == 0:
        return False, "none of its calls can be trained; it counts among the valid executions all the same"
    if batch is None:
        return False, "its group is ready and waits for a batch"
    if not batch.committed:
        return False, f"{batch.batch} is not committed yet"
    targets = sum(step.targets for step in batch.micro_steps)
    steps = f"{len(batch.micro_steps)} micro-step{'' if len(batch.micro_steps) == 1 else 's'}"
    if batch.unreadable:
        steps += f" that can still be read (not {', '.join(map(str, batch.unreadable))})"
    return True, (
        f"{targets} targets in {steps} of {batch.batch}, which took version {batch.version_before} to "
        f"{batch.version_after}, each with {group.advantage:+.4g} / {processed.target_tokens}"
    )


def _group(group: GroupRow, member: GroupMember) -> GroupFact:
    valid = [one.reward for one in group.members if one.left_out is None and one.reward is not None]
    mean = sum(valid) / len(valid) if valid else None
    deviation = None
    if mean is not None and len(valid) > 1:
        deviation = (sum((reward - mean) ** 2 for reward in valid) / (len(valid) - 1)) ** 0.5
    return GroupFact(
        group=group.group_id,
        sequence=group.sequence,
        admitted_version=group.admitted_version,
        valid=group.valid,
        no_signal=group.no_signal,
        rewards=tuple(one.reward if one.left_out is None else None for one in group.members),
        mean=mean,
        deviation=deviation,
        advantage=member.advantage,
        left_out=member.left_out,
        age=member.age,
    )


def _calls(connection: Connection, execution: str) -> dict[str, int]:
    """Role and state -> how many calls."""
    query = select(calls.c.role, calls.c.state, func.count()).where(calls.c.execution == execution)
    rows = connection.execute(query.group_by(calls.c.role, calls.c.state).order_by(calls.c.role, calls.c.state))
    return {f"{role}, {state}": count for role, state, count in rows}


def _batch(connection: Connection, objects: ObjectStore, group: GroupRow, execution: str) -> BatchFact | None:
    """The batch the group was last packed for."""
    packed = select(micro_steps.c.batch).where(micro_steps.c.group_id == group.group_id).distinct()
    consumed = batches.c.batch.in_(packed)
    query = select(batches).where(consumed).order_by(batches.c.committed_at.is_(None), batches.c.opened_at.desc())
    row = connection.execute(query.limit(1)).one_or_none()
    if row is None:
        return None
    counted = {done["index"]: done for done in row.accepted or ()}
    own = (micro_steps.c.batch == row.batch) & (micro_steps.c.group_id == group.group_id)
    steps: list[MicroStepFact] = []
    unreadable: list[int] = []
    for packed_row in connection.execute(select(micro_steps).where(own).order_by(micro_steps.c.micro_step)):
        try:
            step = decode(objects.read(packed_row.uri))
        except (FileNotFoundError, InvalidInput):
            unreadable.append(packed_row.micro_step)
            continue
        fact = _micro_step(step, packed_row, execution, counted.get(packed_row.micro_step), connection)
        if fact is not None:
            steps.append(fact)
    return BatchFact(
        batch=row.batch,
        version_before=row.version_before,
        version_after=row.version_after,
        committed=row.committed_at is not None,
        valid_executions=row.normalizer,
        micro_steps=tuple(steps),
        unreadable=tuple(unreadable),
        figures=row.metrics or {},
    )


def _micro_step(
    step: PackedMicroStep, row: Row[Any], execution: str, done: dict[str, int] | None, connection: Connection
) -> MicroStepFact | None:
    mine = [path for path in step.header.paths if path.execution == execution]
    if not mine:
        return None
    targets: Counter[str] = Counter()
    for path in mine:
        for span in path.spans:
            targets[span.call] += span.end - span.start
    if done is None:
        claimed = connection.execute(
            select(claims.c.cell).where(claims.c.batch == row.batch, claims.c.micro_step == row.micro_step)
        ).scalars()
        cells = sorted(set(claimed))
        counted = f"claimed by cell {', '.join(map(str, cells))}" if cells else None
    else:
        counted = f"attempt {done['attempt']}, cell {done['cell']}, boot epoch {done['boot_epoch']}"
    return MicroStepFact(
        index=row.micro_step,
        layout=step.header.layout,
        tokens=row.tokens,
        targets=targets.total(),
        paths=tuple(f"{path.role}: {path.branch}" if path.branch else path.role for path in mine),
        calls=dict(targets),
        sha256=row.sha256,
        counted=counted,
    )
