"""What every cell spent its time on, in seconds."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infra.report import intervals
from infra.report.changes import ROLE_CHANGES, Roles
from infra.report.intervals import Intervals, common, length, merged, of, without
from infra.report.leaders import Leaders
from infra.report.reading import Claim, ExecutionFact, Records, Update

CHANGING = tuple("retiring" if change == "retire" else change for change in ROLE_CHANGES)


@dataclass(frozen=True)
class CellUse:
    """Seconds of one cell.

    In rollout: `serving` at least one request, `idle` while executions were out, `unused` while none was. In training:
    `training` micro-steps, `updating` (combine, optimizer, commit), `waiting` for data. `slot_seconds`: requests times
    seconds it served. `publishing`: loading new weights with the door closed. `retired`: gone from the fleet.
    """

    cell: int
    serving: float
    idle: float
    unused: float
    training: float
    updating: float
    waiting: float
    changing: float
    publishing: float
    starting: float
    parked: float
    retired: float
    slot_seconds: float

    @property
    def rollout(self) -> float:
        return self.serving + self.idle + self.unused

    @property
    def in_training(self) -> float:
        return self.training + self.updating + self.waiting


class Busy:
    """When cells were at work: `served`, `trained` and `updated` by cell, and when executions were `out`.

    `counted`: the part of `trained` whose gradients are in a committed update.
    """

    def __init__(self, records: Records) -> None:
        cells = records.segments.cell
        spans = records.segments.spans
        self.raw = {cell: spans[cells == cell] for cell in sorted(set(cells.tolist()))}
        self.served = {cell: merged(found) for cell, found in self.raw.items()}
        self.trained = _trained(records.claims)
        self.counted = _trained(claim for claim in records.claims if claim.counted)
        self.updated = _updated(records.updates, records.claims, Leaders(records.entries))
        self.out = _out(records.executions, records.end)


def use(roles: Roles, busy: Busy) -> list[CellUse]:
    """Every cell's seconds."""
    return [_use(roles, busy, cell) for cell in roles.spans]


def _use(roles: Roles, busy: Busy, cell: int) -> CellUse:
    rollout, training = _held(roles, cell, "rollout"), _held(roles, cell, "training")
    serving = common(rollout, busy.served.get(cell, intervals.NONE))
    idle = without(common(rollout, busy.out), busy.served.get(cell, intervals.NONE))
    trained = common(training, busy.trained.get(cell, intervals.NONE))
    updating = without(common(training, busy.updated.get(cell, intervals.NONE)), trained)
    raw = busy.raw.get(cell, intervals.NONE)
    return CellUse(
        cell=cell,
        serving=length(serving),
        idle=length(idle),
        unused=max(0.0, length(rollout) - length(serving) - length(idle)),
        training=length(trained),
        updating=length(updating),
        waiting=max(0.0, length(training) - length(trained) - length(updating)),
        changing=length(_held(roles, cell, *CHANGING)),
        publishing=length(_held(roles, cell, "publishing")),
        starting=length(_held(roles, cell, "starting")),
        parked=length(_held(roles, cell, "parked")),
        retired=length(_held(roles, cell, "retired")),
        slot_seconds=length(raw),
    )


def counted(roles: Roles, busy: Busy, when: Intervals | None = None) -> float:
    """Cell-seconds of micro-steps that counted: all of them, or during these (disjoint) intervals."""
    found = [common(_held(roles, cell, "training"), done) for cell, done in busy.counted.items()]
    return sum(length(done if when is None else common(done, when)) for done in found)


def _held(roles: Roles, cell: int, *names: str) -> Intervals:
    return merged(of((span.begin, span.end) for span in roles.of(cell, *names)))


def _trained(claims: Iterable[Claim]) -> dict[int, Intervals]:
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for claim in claims:
        found[claim.cell].append((claim.claimed_at, claim.done_at))
    return {cell: merged(of(pairs)) for cell, pairs in found.items()}


def _updated(updates: Iterable[Update], claims: Sequence[Claim], leaders: Leaders) -> dict[int, Intervals]:
    """From a batch's last micro-step to its commit: of the core, which updates, and of those that wait for it."""
    last: dict[str, float] = {}
    for claim in claims:
        last[claim.batch] = max(claim.done_at, last.get(claim.batch, claim.done_at))
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for update in updates:
        if update.committed_at is not None and update.batch in last:
            for cell in {leaders.at(last[update.batch]), *update.cells}:
                found[cell].append((last[update.batch], update.committed_at))
    return {cell: merged(of(pairs)) for cell, pairs in found.items()}


def _out(executions: Iterable[ExecutionFact], end: float) -> Intervals:
    begun = [fact for fact in executions if fact.prepared_at is not None]
    pairs = [(fact.prepared_at or 0.0, end if fact.closed_at is None else fact.closed_at) for fact in begun]
    return merged(np.array(pairs).reshape(-1, 2))
