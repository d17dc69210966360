"""What was true at a given moment, from the raw records: where cells were, which version was published, which boots.

Moments are seconds since the epoch. `SKEW_SECONDS` forgives clocks of different components that much, never more.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from sqlalchemy import Engine, select

from infra.audit.reader import stream
from infra.records import schema

SKEW_SECONDS = 0.25
SWAP = "swap-weights"
"""The step of a publish that changes weights under running requests."""
_BACK = ("to_rollout", "boot")


@dataclass(frozen=True)
class Interval:
    """[start, end) in seconds since the epoch."""

    start: float
    end: float

    def holds(self, moment: float) -> bool:
        """Whether `moment` lies inside, further from the edges than clocks may differ."""
        return self.start + SKEW_SECONDS < moment < self.end - SKEW_SECONDS


@dataclass
class CellTimeline:
    """One cell.

    `leaving`: departures the Scheduler decided on (a person's retry of a parked one is not among them); `away`: from
    the start of leaving to the end of coming back; `training`: what lies surely between; `loaded`: changes that loaded
    the published weights; `swapped`: those that did so under running requests (`publish: keep_kv`).
    """

    leaving: list[Interval] = field(default_factory=list)
    away: list[Interval] = field(default_factory=list)
    training: list[Interval] = field(default_factory=list)
    loaded: list[Interval] = field(default_factory=list)
    swapped: list[Interval] = field(default_factory=list)


class Timelines:
    """Cells, boots and published versions of one run.

    A version is published when its update says so, and for one cell already when that cell has loaded the weights
    after the Scheduler wrote the publish to the ledger.
    """

    def __init__(self, engine: Engine, *, at_rest: bool) -> None:
        self.boots: dict[tuple[str, int], float] = {}
        for row in stream(engine, select(schema.boots)):
            self.boots[row.component, row.boot_epoch] = row.booted_at
        self.cells = _cells(engine, self.boots)
        rows = list(stream(engine, select(schema.updates).order_by(schema.updates.c.version)))
        self._committed = {row.version: row.committed_at for row in rows}
        unbatched = [row.version for row in rows if row.batch is None]
        self._base = min(unbatched) if unbatched else min(self._committed, default=1) - 1
        self._publishing = None if at_rest else max(self._committed, default=None)
        self._finished = [(row.published_at, row.version) for row in rows if row.published_at is not None]
        self._begun = _publishes(engine)
        self._published = {version for _, version in (*self._finished, *self._begun)}

    def boot_of(self, cell: int, boot_epoch: int) -> float | None:
        """When cell `cell` booted into `boot_epoch`; None if it never did."""
        return self.boots.get((f"cell-{cell}", boot_epoch))

    def published_at(self, cell: int, moment: float) -> int | None:
        """The version that the engine of `cell` surely had to serve at `moment`; None before the first publish."""
        known = [version for at, version in self._finished if at + SKEW_SECONDS < moment]
        timeline = self.cells.get(cell, CellTimeline())
        for change in timeline.loaded:
            if change.end + SKEW_SECONDS < moment:
                known += [version for at, version in self._begun if at <= change.start]
        return max(known, default=None)

    def servable(self, version: int, moment: float) -> str | None:
        """Why no engine may have served `version` at `moment`, or None when one may."""
        if version == self._base:
            return None
        committed = self._committed.get(version)
        if committed is None:
            return f"version {version} has no update"
        if moment < committed - SKEW_SECONDS:
            return f"version {version} was committed {committed - moment:.3f} s later"
        if version not in self._published and version != self._publishing:
            return f"version {version} was never published"
        return None


def _publishes(engine: Engine) -> list[tuple[float, int]]:
    """(moment, version) of every publish the Scheduler began, from the ledger."""
    table, found = schema.ledger, []
    for row in stream(engine, select(table).where(table.c.kind == "publish").order_by(table.c.at)):
        versions = [re.fullmatch(r"version (\d+)", str(reason)) for reason in row.reasons]
        found += [(row.at, int(match[1])) for match in versions if match]
    return found


def _cells(engine: Engine, boots: dict[tuple[str, int], float]) -> dict[int, CellTimeline]:
    rows_of: dict[int, list[tuple[str, float, float | None, str | None]]] = defaultdict(list)
    query = select(schema.transitions).order_by(schema.transitions.c.started_at)
    for row in stream(engine, query):
        rows_of[row.cell].append((row.direction, row.started_at, row.ended_at, row.result))
    booted: dict[str, list[float]] = defaultdict(list)
    for (component, _), moment in sorted(boots.items(), key=lambda item: item[1]):
        booted[component].append(moment)
    found = {cell: _timeline(rows, booted[f"cell-{cell}"]) for cell, rows in rows_of.items()}
    for row in stream(engine, query.where(schema.transitions.c.direction == "publish")):
        if any(step.get("name") == SWAP for step in row.steps or ()):
            found[row.cell].swapped.append(Interval(row.started_at, inf if row.ended_at is None else row.ended_at))
    return found


def _timeline(rows: list[tuple[str, float, float | None, str | None]], booted: list[float]) -> CellTimeline:
    timeline = CellTimeline()
    retried = False
    for index, (direction, started, ended, result) in enumerate(rows):
        if direction in ("to_rollout", "publish") and result == "done" and ended is not None:
            timeline.loaded.append(Interval(started, ended))
        if direction != "to_training":
            retried = False
            continue
        later = rows[index + 1 :]
        crash = min((moment for moment in booted if moment > started), default=inf)
        if not retried:
            timeline.leaving.append(Interval(started, min(inf if ended is None else ended, crash)))
        retried = result == "parked"
        if result == "rolled_back":
            timeline.away.append(Interval(started, ended or inf))
            continue
        back = [row for row in later if row[0] in _BACK]
        returned = min((row[2] for row in back if row[3] == "done" and row[2] is not None), default=inf)
        turning = min((row[1] for row in back), default=inf)
        timeline.away.append(Interval(started, returned))
        if ended is not None and result == "done":
            timeline.training.append(Interval(ended, min(turning, crash)))
    return timeline
