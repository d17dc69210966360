"""Groups and the batches that consumed them: complete, once, in order of admission (invariants 1, 6 and 8)."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from sqlalchemy import Engine, Row, select

from infra.audit.executions import ExecutionFact
from infra.audit.reader import stream
from infra.audit.report import Findings
from infra.audit.rewards import agree, choose, has_spread, is_valid
from infra.records import schema


@dataclass(frozen=True)
class BatchFact:
    """One batch, as far as order and versions go."""

    batch: str
    burst: str
    opened_at: float
    committed_at: float | None
    version_before: int
    version_after: int | None
    groups: tuple[str, ...]


@dataclass(frozen=True)
class GroupFact:
    """One admitted group. `advantages`: by the audit, of its valid executions; empty without signal."""

    group: str
    burst: str
    sequence: int
    batch: str | None
    valid: int
    has_signal: bool
    advantages: dict[str, float]
    target_tokens: dict[str, int]


def batches_in_order(engine: Engine) -> list[BatchFact]:
    """All batches in the order they were opened."""
    table = schema.batches
    rows = stream(engine, select(table).order_by(table.c.opened_at, table.c.version_before, table.c.step))
    return [
        BatchFact(
            batch=row.batch,
            burst=row.burst,
            opened_at=row.opened_at,
            committed_at=row.committed_at,
            version_before=row.version_before,
            version_after=row.version_after,
            groups=tuple(row.groups or ()),
        )
        for row in rows
    ]


def check_groups(
    engine: Engine,
    findings: Findings,
    executions: dict[str, ExecutionFact],
    batches: list[BatchFact],
    *,
    cancelled: frozenset[str],
    shuffled: frozenset[str],
    method: str | None,
) -> dict[str, GroupFact]:
    """Check every admitted group against its executions, then all of them against the batches."""
    expected: Counter[tuple[str, int]] = Counter()
    for fact in executions.values():
        expected[fact.burst, fact.group_index] += 1
    committed = {batch.batch: batch for batch in batches if batch.committed_at is not None}
    groups: dict[str, GroupFact] = {}
    group_of: dict[str, str] = {}
    by_sequence: dict[int, str] = {}
    methods = _advantage_methods(engine)
    for row in stream(engine, select(schema.groups).order_by(schema.groups.c.sequence, schema.groups.c.group_id)):
        other = by_sequence.setdefault(row.sequence, row.group_id)
        findings.expect(other == row.group_id, "sequence-repeated", row.group_id, f"{row.sequence}, as {other}")
        for member in row.members:
            owner = group_of.setdefault(member["execution"], row.group_id)
            detail = f"{owner} and {row.group_id}"
            findings.expect(owner == row.group_id, "execution-in-two-groups", member["execution"], detail)
        _check_complete(findings, row, executions, expected[row.burst, row.group_index])
        _check_members(findings, row, executions)
        _check_staleness(findings, row, executions, committed.get(row.batch or ""))
        groups[row.group_id] = _fact(findings, row, method or methods.get(row.batch))
    _check_membership(findings, groups, committed, shuffled)
    _check_passed_over(findings, groups, batches, cancelled)
    findings.figures["unrecorded_executions"] = len(group_of.keys() - executions.keys())
    return groups


def _check_complete(findings: Findings, row: Row, executions: dict[str, ExecutionFact], expected: int) -> None:
    members = [member["execution"] for member in row.members]
    known = [executions[member] for member in members if member in executions]
    same = sum((fact.burst, fact.group_index) == (row.burst, row.group_index) for fact in known)
    unknown = [m["execution"] for m in row.members if m["execution"] not in executions and m["outcome"] == "scored"]
    whole = len(set(members)) == len(members) and same == len(known) == expected and not unknown
    detail = f"{len(members)} members, {same} of {expected} executions; scored but unknown: {unknown[:3]}"
    findings.expect(whole, "group-incomplete", row.group_id, detail)
    late = [fact for fact in known if fact.closed_at is None or fact.closed_at > row.admitted_at]
    findings.expect(not late, "group-incomplete", row.group_id, f"{len(late)} executions closed after its admission")


def _check_members(findings: Findings, row: Row, executions: dict[str, ExecutionFact]) -> None:
    for member in row.members:
        if member["outcome"] != "scored":
            detail = f"in {row.group_id}: outcome {member['outcome']}, reward {member['reward']}"
            findings.expect(member["reward"] is None, "failure-rewarded", member["execution"], detail)
        fact = executions.get(member["execution"])
        if fact is not None:
            copy, original = (member["outcome"], member["reward"]), (fact.outcome or "no_artifact", fact.reward)
            findings.expect(copy == original, "reward-disagrees", member["execution"], f"{copy}, was {original}")
    valid = sum(is_valid(member) for member in row.members)
    findings.expect(row.valid == valid, "valid-count-differs", row.group_id, f"recorded {row.valid}, are {valid}")


def _check_staleness(
    findings: Findings, row: Row, executions: dict[str, ExecutionFact], batch: BatchFact | None
) -> None:
    members = [executions[m["execution"]] for m in row.members if m["execution"] in executions]
    dispatched = max((fact.dispatch_version for fact in members), default=row.admitted_version)
    detail = f"dispatched at {dispatched}, admitted at {row.admitted_version}, consumed at {row.consumed_version}"
    findings.expect(dispatched <= row.admitted_version, "staleness-negative", row.group_id, detail)
    if batch is None:
        return
    findings.expect(row.admitted_version <= batch.version_before, "staleness-negative", row.group_id, detail)
    detail += f"; its batch trained {batch.version_before}"
    findings.expect(row.consumed_version == batch.version_before, "consumed-version", row.group_id, detail)


def _advantage_methods(engine: Engine) -> dict[str, str]:
    """Batch -> its way of making advantages, from the settings it was opened with."""
    table = schema.batches
    rows = stream(engine, select(table.c.batch, table.c.settings).where(table.c.settings.is_not(None)))
    return {row.batch: row.settings["advantage"] for row in rows if row.settings and "advantage" in row.settings}


def _fact(findings: Findings, row: Row, method: str | None) -> GroupFact:
    valid = {m["execution"]: m["reward"] for m in row.members if is_valid(m)}
    targets = {m["execution"]: m["target_tokens"] or 0 for m in row.members if is_valid(m)}
    has_signal = has_spread(list(valid.values())) and sum(targets.values()) > 0
    detail = f"no_signal {row.no_signal}, rewards {sorted(valid.values())}, targets {sum(targets.values())}"
    findings.expect(has_signal == (row.no_signal is None), "signal-differs", row.group_id, detail)
    recorded = {m["execution"]: m["advantage"] or 0.0 for m in row.members}
    own = choose(valid, recorded, method) if has_signal else {}
    for execution, advantage in recorded.items():
        right = own.get(execution, 0.0)
        findings.expect(agree(advantage, right), "advantage-differs", execution, f"recorded {advantage}, is {right}")
    return GroupFact(
        group=row.group_id,
        burst=row.burst,
        sequence=row.sequence,
        batch=row.batch,
        valid=len(valid),
        has_signal=has_signal,
        advantages=own,
        target_tokens=targets,
    )


def _check_membership(
    findings: Findings, groups: dict[str, GroupFact], committed: dict[str, BatchFact], shuffled: frozenset[str]
) -> None:
    consumers: dict[str, list[str]] = defaultdict(list)
    order: list[GroupFact] = []
    last, begun = "", 0
    for batch in committed.values():
        begun = len(order) if batch.burst != last else begun
        last = batch.burst
        for group in batch.groups:
            consumers[group].append(batch.batch)
            if group not in groups:
                findings.add("batch-names-unknown-group", batch.batch, group)
                continue
            order.append(groups[group])
            detail = f"{group} says {groups[group].batch}"
            findings.expect(groups[group].batch == batch.batch, "group-batch-disagrees", batch.batch, detail)
        if batch.burst in shuffled:  # within such a burst any order is right; between bursts it is that of admission
            order[begun:] = sorted(order[begun:], key=lambda group: group.sequence)
    for group, names in consumers.items():
        findings.expect(len(names) == 1, "group-in-two-batches", group, ", ".join(names))
    for group in groups.values():
        if group.batch in committed and group.group not in consumers:
            findings.add("group-batch-disagrees", group.group, f"{group.batch} does not name it")
    for before, after in pairwise(order):
        detail = f"{after.group} ({after.sequence}) came after {before.group} ({before.sequence})"
        findings.expect(after.sequence > before.sequence, "membership-out-of-order", after.batch or "", detail)


def _check_passed_over(
    findings: Findings, groups: dict[str, GroupFact], batches: list[BatchFact], cancelled: frozenset[str]
) -> None:
    """A group with signal is consumed before any later one, unless its burst, or the batch it was in, was given up."""
    committed = [batch for batch in batches if batch.committed_at is not None]
    consumed = {group for batch in committed for group in batch.groups}
    first, last = ([_edge(groups, batch, pick) for batch in committed] for pick in (min, max))
    for group in groups.values():
        if group.group in consumed or not group.has_signal or group.burst in cancelled:
            continue
        after = next((b.opened_at for b, edge in zip(committed, last, strict=True) if edge > group.sequence), None)
        before = [b.opened_at for b, edge in zip(committed, first, strict=True) if edge < group.sequence]
        if after is None:
            continue
        since = max((opened for opened in before if opened < after), default=-inf)
        given_up = any(since < b.opened_at < after for b in batches if b.committed_at is None and b.burst in cancelled)
        detail = f"sequence {group.sequence}, consumed up to {max(last)}"
        findings.expect(given_up, "membership-skips", group.group, detail)


def _edge(groups: dict[str, GroupFact], batch: BatchFact, pick: Callable[..., int]) -> int:
    return pick((groups[name].sequence for name in batch.groups if name in groups), default=-1)
