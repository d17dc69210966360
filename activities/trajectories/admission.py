"""A group whose executions are all closed becomes a ready group: statistics, |T_i| and its place in order, frozen.

Statistics are over valid executions only: scored by a grader that did not fail, with a trajectory, not older than the
staleness bound. A group without signal is admitted too; its members then carry no advantage.
"""

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy import Engine
from temporalio import activity

from activities.trajectories.advantages import group_advantages, is_valid
from infra.records.executions import ExecutionRow, close_unreported, get_execution
from infra.records.groups import Admission, GroupMember, GroupRow, admit, get_group, serialise_admissions
from workflows.messages import ids
from workflows.messages.errors import VersionMismatch
from workflows.messages.execution import Outcome
from workflows.messages.group import AdmitGroup, AdmittedGroup, NoSignal

_log = logging.getLogger(__name__)


class AdmissionActivities:
    """Runs on the control queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name="admit_group")
    async def admit_group(self, request: AdmitGroup) -> AdmittedGroup:
        """Admit a group once; a repetition returns what was frozen then.

        Raises VersionMismatch if a member was sampled at a version newer than the one of admission.
        """
        return await asyncio.to_thread(self._admit, request)

    def _admit(self, request: AdmitGroup) -> AdmittedGroup:
        with self._engine.begin() as connection:
            serialise_admissions(connection)
            row = get_group(connection, ids.group_id(request.burst, request.group))
            if row is None:
                for execution in request.executions:
                    close_unreported(connection, execution)
                rows = {name: get_execution(connection, name) for name in request.executions}
                row = admit(connection, judge(request, rows))
        admitted = summary(row)
        if admitted.no_signal:
            _log.info("group %s/%04d has no signal: %s", row.burst, row.group_index, admitted.no_signal)
        return admitted


def judge(request: AdmitGroup, rows: dict[str, ExecutionRow | None]) -> Admission:
    """Members with advantages, and whether the group has signal. Order of members is that of the request."""
    reasons = [_left_out(request, rows[name]) for name in request.executions]
    rewards = [
        row.reward if reason is None and (row := rows[name]) is not None else None
        for name, reason in zip(request.executions, reasons, strict=True)
    ]
    statistics = group_advantages(rewards, request.training.advantage)
    targets = [_targets(rows[name]) for name in request.executions]
    no_signal = statistics.no_signal
    if no_signal is None and not any(
        count for count, reward in zip(targets, rewards, strict=True) if reward is not None
    ):
        no_signal = NoSignal.NO_TARGETS
    members = tuple(
        _member(request, name, rows[name], reason, advantage if no_signal is None else None)
        for name, reason, advantage in zip(request.executions, reasons, statistics.advantages, strict=True)
    )
    return Admission(
        run=request.run,
        burst=request.burst,
        group=request.group,
        version=request.version,
        valid=statistics.valid,
        no_signal=no_signal,
        members=members,
    )


def summary(row: GroupRow) -> AdmittedGroup:
    """What the workflows are told of an admitted group."""
    valid = [member for member in row.members if member.left_out is None]
    targets = 0 if row.no_signal else sum(member.target_tokens for member in valid)
    return AdmittedGroup(
        burst=row.burst,
        group=row.group_index,
        sequence=row.sequence,
        valid=row.valid,
        no_signal=None if row.no_signal is None else NoSignal(row.no_signal),
        target_tokens=targets,
        mean_reward=_mean([member.reward for member in valid if member.reward is not None]),
        version=row.admitted_version,
        staleness=_mean([member.staleness for member in valid if member.staleness is not None]),
    )


def _left_out(request: AdmitGroup, row: ExecutionRow | None) -> str | None:
    """Why an execution is not valid, None if it is."""
    if row is None:
        return "never prepared"
    if row.outcome != Outcome.SCORED or not is_valid(row.reward):
        return row.outcome or "not scored"
    if row.processed is None:
        return "not processed"
    processed = row.processed.processed
    newest = processed.newest_version
    if row.dispatch_version > request.version or (newest is not None and newest > request.version):
        raise VersionMismatch(
            f"{row.execution} was dispatched at version {row.dispatch_version} and sampled up to {newest}, "
            f"newer than {request.version} at its admission"
        )
    bound, age = request.training.max_staleness, _age(request, row)
    return f"stale: {age} versions old" if bound is not None and age > bound else None


def _age(request: AdmitGroup, row: ExecutionRow) -> int:
    """Versions from an execution's oldest target to the admission. One old token makes the whole execution old: its
    reward belongs to all of it."""
    oldest = None if row.processed is None else row.processed.processed.oldest_version
    return request.version - (row.dispatch_version if oldest is None else oldest)


def _targets(row: ExecutionRow | None) -> int:
    return row.processed.processed.target_tokens if row is not None and row.processed is not None else 0


def _member(
    request: AdmitGroup, name: str, row: ExecutionRow | None, reason: str | None, advantage: float | None
) -> GroupMember:
    processed = None if row is None or row.processed is None else row.processed.processed
    return GroupMember(
        execution=name,
        outcome=Outcome.NO_ARTIFACT if row is None or row.outcome is None else row.outcome,
        reward=None if row is None else row.reward,
        advantage=advantage,
        target_tokens=_targets(row),
        left_out=reason,
        staleness=None if row is None else request.version - row.dispatch_version,
        oldest_version=None if processed is None else processed.oldest_version,
        newest_version=None if processed is None else processed.newest_version,
        age=None if row is None else _age(request, row),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
