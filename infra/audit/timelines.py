"""What was true at a given moment, from the raw records: where cells were, which version was published, which boots.

Moments are seconds since the epoch. `SKEW_SECONDS` forgives clocks of different components that much, never more.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from sqlalchemy import Engine, select

from infra.audit.reader import stream
from infra.records import schema

SKEW_SECONDS = 0.25
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
    """One cell. `away`: from the start of leaving to the end of coming back; `training`: what lies surely between."""

    leaving: list[Interval] = field(default_factory=list)
    away: list[Interval] = field(default_factory=list)
    training: list[Interval] = field(default_factory=list)


class Timelines:
    """Cells, boots and published versions of one run."""

    def __init__(self, engine: Engine, *, at_rest: bool) -> None:
        self.boots: dict[tuple[str, int], float] = {}
        for row in stream(engine, select(schema.boots)):
            self.boots[row.component, row.boot_epoch] = row.booted_at
        self.cells = _cells(engine, self.boots)
        rows = list(stream(engine, select(schema.updates).order_by(schema.updates.c.version)))
        self._committed = {row.version: row.committed_at for row in rows}
        self._published_version = {row.version for row in rows if row.published_at is not None}
        unbatched = [row.version for row in rows if row.batch is None]
        self._base = min(unbatched) if unbatched else min(self._committed, default=1) - 1
        self._publishing = None if at_rest else max(self._committed, default=None)
        published = sorted((row.published_at, row.version) for row in rows if row.published_at is not None)
        self._publish_times = [moment for moment, _ in published]
        self._publish_versions = [version for _, version in published]

    def boot_of(self, cell: int, boot_epoch: int) -> float | None:
        """When cell `cell` booted into `boot_epoch`; None if it never did."""
        return self.boots.get((f"cell-{cell}", boot_epoch))

    def published_at(self, moment: float) -> int | None:
        """The version surely published at `moment`; None before the first publish."""
        index = bisect_right(self._publish_times, moment - SKEW_SECONDS)
        return max(self._publish_versions[:index], default=None) if index else None

    def servable(self, version: int, moment: float) -> str | None:
        """Why no engine may have served `version` at `moment`, or None when one may."""
        if version == self._base:
            return None
        committed = self._committed.get(version)
        if committed is None:
            return f"version {version} has no update"
        if moment < committed - SKEW_SECONDS:
            return f"version {version} was committed {committed - moment:.3f} s later"
        if version not in self._published_version and version != self._publishing:
            return f"version {version} was never published"
        return None


def _cells(engine: Engine, boots: dict[tuple[str, int], float]) -> dict[int, CellTimeline]:
    rows_of: dict[int, list[tuple[str, float, float | None, str | None]]] = defaultdict(list)
    query = select(schema.transitions).order_by(schema.transitions.c.started_at)
    for row in stream(engine, query):
        rows_of[row.cell].append((row.direction, row.started_at, row.ended_at, row.result))
    booted: dict[str, list[float]] = defaultdict(list)
    for (component, _), moment in sorted(boots.items(), key=lambda item: item[1]):
        booted[component].append(moment)
    return {cell: _timeline(rows, booted[f"cell-{cell}"]) for cell, rows in rows_of.items()}


def _timeline(rows: list[tuple[str, float, float | None, str | None]], booted: list[float]) -> CellTimeline:
    timeline = CellTimeline()
    for index, (direction, started, ended, result) in enumerate(rows):
        if direction != "to_training":
            continue
        later = rows[index + 1 :]
        crash = min((moment for moment in booted if moment > started), default=inf)
        timeline.leaving.append(Interval(started, min(inf if ended is None else ended, crash)))
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
