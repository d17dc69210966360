"""Executions by query: a query (group) takes as long as its longest execution, and its time-out caps it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from infra.report.reading import ExecutionFact

NEAR_SHARE = 0.9
"""An execution ends near its time-out from this share of it on."""


@dataclass(frozen=True)
class Query:
    """One closed group: seconds of its longest execution, and whether that one ended near the time-out."""

    burst: str
    group: int
    seconds: float
    near_limit: bool


@dataclass(frozen=True)
class Durations:
    """`queries`: of closed groups. `near_limit`: executions that ended near or at the time-out, of `executions`.

    `limit_seconds`: the time-outs set, in order; `ends`: how executions ended.
    """

    queries: tuple[Query, ...]
    executions: int
    near_limit: int
    limit_seconds: tuple[float, ...]
    ends: dict[str, int]


def durations(executions: Iterable[ExecutionFact], purpose: str = "train") -> Durations:
    """The closed executions of this purpose."""
    groups: dict[tuple[str, int], list[ExecutionFact]] = defaultdict(list)
    for fact in executions:
        if fact.purpose == purpose:
            groups[fact.burst, fact.group].append(fact)
    queries: list[Query] = []
    for (burst, group), members in sorted(groups.items()):
        if all(member.closed_at is not None for member in members):
            longest = max(members, key=_seconds)
            queries.append(Query(burst, group, _seconds(longest), near_limit(longest)))
    closed = [member for members in groups.values() for member in members if member.closed_at is not None]
    ends: dict[str, int] = defaultdict(int)
    for fact in closed:
        ends[fact.end_reason or "unknown"] += 1
    return Durations(
        queries=tuple(queries),
        executions=len(closed),
        near_limit=sum(near_limit(fact) for fact in closed),
        limit_seconds=tuple(sorted({fact.wall_seconds for fact in closed if fact.wall_seconds is not None})),
        ends=dict(sorted(ends.items(), key=lambda item: -item[1])),
    )


def near_limit(fact: ExecutionFact) -> bool:
    """Whether it ended at its time-out, or so late that it nearly did."""
    if fact.end_reason == "wall_limit":
        return True
    return fact.wall_seconds is not None and _seconds(fact) >= NEAR_SHARE * fact.wall_seconds


def _seconds(fact: ExecutionFact) -> float:
    """Of its harness; of an execution whose harness was not timed (terminated), from preparing to the close."""
    if fact.seconds is not None:
        return fact.seconds
    if fact.prepared_at is None or fact.closed_at is None:
        return 0.0
    return fact.closed_at - fact.prepared_at
