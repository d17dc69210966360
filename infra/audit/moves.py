"""The ledger and the role changes: counters over time, and every move (invariants 1 and 2).

The capacity and the prefix rule bind `waterlevel`, unless safe mode has frozen its split; the bounds bind every policy.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Engine, Row, select

from infra.audit.executions import ExecutionFact
from infra.audit.reader import stream
from infra.audit.report import Findings
from infra.audit.timelines import SKEW_SECONDS, Interval, Timelines
from infra.records import schema

_COUNTERS = ("dispatched", "launched", "finished")
_INELIGIBLE = ("parked", "lost", "starting")
_SWEPT = ("terminated", "cancelled")


class RunningExecutions:
    """How many executions were surely running at a moment: prepared before it and closed after it.

    Terminated and cancelled ones are left out: the Scheduler may count them before their rows are closed.
    """

    def __init__(self, executions: dict[str, ExecutionFact]) -> None:
        spans = [
            (fact.prepared_at, fact.closed_at)
            for fact in executions.values()
            if fact.prepared_at is not None and fact.closed_at is not None and fact.end_reason not in _SWEPT
        ]
        self._starts = sorted(start for start, _ in spans)
        self._ends = sorted(end for _, end in spans)

    def at(self, moment: float) -> int:
        begun = bisect_left(self._starts, moment - SKEW_SECONDS)
        over = bisect_right(self._ends, moment + SKEW_SECONDS)
        return max(0, begun - over)


@dataclass(frozen=True)
class Departure:
    """A decision by which `cells` left rollout together."""

    at: float
    entry: int
    cells: tuple[int, ...]


def check_ledger(
    engine: Engine,
    findings: Findings,
    executions: dict[str, ExecutionFact],
    timelines: Timelines,
    *,
    cancelled: int,
    at_rest: bool,
) -> None:
    """Check counters and moves, and report the counts and the largest w - (C_R - C_e) of all `waterlevel` moves."""
    running = RunningExecutions(executions)
    counters: list[tuple[float, tuple[int, ...]]] = []
    margins: list[int] = []
    departures: list[Departure] = []
    frozen = False
    for row in stream(engine, select(schema.ledger).order_by(schema.ledger.c.entry)):
        state = row.state or {}
        if all(isinstance(state.get(name), int) for name in _COUNTERS):
            counters.append((state.get("now", row.at), tuple(state[name] for name in _COUNTERS)))
        if row.kind == "safe_mode":
            frozen = row.reasons[:1] == ["entered"]
        elif row.kind == "move" and row.cell is not None:
            departures.append(Departure(row.at, row.entry, (row.cell, *(row.together or ()))))
            try:
                _check_departure(findings, row, state, running, timelines)
                _check_bounds(findings, row, state)
                if row.policy in ("", "waterlevel") and not frozen:
                    margins.append(_check_waterlevel(findings, row, state))
            except (KeyError, TypeError, IndexError) as error:
                findings.add("state-unreadable", f"ledger {row.entry}", f"{type(error).__name__} {error}")
    _check_counters(findings, sorted(counters), executions, cancelled=cancelled, at_rest=at_rest)
    _check_leaving(findings, timelines, departures)
    moves = sum(len(departure.cells) for departure in departures)
    findings.figures |= {"moves": moves, "max_w_minus_capacity": max(margins, default=None)}


def _check_departure(
    findings: Findings, row: Row, state: dict[str, Any], running: RunningExecutions, timelines: Timelines
) -> None:
    """What holds under every policy: true counts, a true capacity, movers that are there and one move at a time."""
    subject, moment = f"ledger {row.entry}", state["now"]
    cells = {cell["index"]: cell for cell in state["cells"]}
    waterlevel, really = state["dispatched"] - state["finished"], running.at(moment)
    findings.expect(waterlevel >= really, "waterlevel-below-running", subject, f"w {waterlevel}, {really} running")
    for cell in (cell for cell in cells.values() if cell["serving"]):
        timeline = timelines.cells.get(cell["index"])
        absent = timeline is not None and any(interval.holds(moment) for interval in timeline.away)
        findings.expect(not absent, "capacity-counts-absent-cell", subject, f"cell {cell['index']}")
    for mover in (cells[index] for index in (row.cell, *(row.together or ()))):
        there = mover["role"] == "rollout" and mover["trains"] and not state["move_under_way"]
        detail = f"cell {mover['index']} is {mover['role']}, under way {state['move_under_way']}"
        findings.expect(there, "move-of-absent-cell", subject, detail)


def _check_waterlevel(findings: Findings, row: Row, state: dict[str, Any]) -> int:
    """The capacity and the prefix rule of `waterlevel`; returns w - (C_R - C_e)."""
    subject = f"ledger {row.entry}"
    cells = {cell["index"]: cell for cell in state["cells"]}
    waterlevel, mover = state["dispatched"] - state["finished"], cells[row.cell]
    serving = [cell for cell in cells.values() if cell["serving"]]
    left = state["standalone_slots"] + sum(cell["slots"] for cell in serving) - mover["slots"]
    detail = f"cell {row.cell}, w {waterlevel}, C_R - C_e {left}"
    findings.expect(waterlevel <= left, "move-over-capacity", subject, detail)
    findings.expect(
        mover["serving"], "move-of-absent-cell", subject, f"cell {row.cell} is {mover['role']}, not serving"
    )
    for index, cell in cells.items():  # as the policy saw them: the core first, whichever cell that was
        if index == row.cell:
            break
        eligible = cell["trains"] and cell["role"] not in _INELIGIBLE
        if eligible and cell["role"] != "training":
            findings.add("move-breaks-prefix", subject, f"cell {row.cell} before cell {index} ({cell['role']})")
    return waterlevel - left


def _check_bounds(findings: Findings, row: Row, state: dict[str, Any]) -> None:
    """The fleet's bounds, which bind every policy."""
    subject, bounds = f"ledger {row.entry}", state["bounds"]
    roles = Counter(cell["role"] for cell in state["cells"])
    moving = 1 + len(row.together or ())
    training = roles["training"] + roles["to_training"] + moving
    rollout = roles["rollout"] + roles["to_rollout"] - moving
    most, least = bounds["max_training_cells"], bounds["min_rollout_cells"]
    detail = f"{training} training, {rollout} rollout afterwards; bounds {bounds}"
    findings.expect(rollout >= least and (most is None or training <= most), "move-over-bounds", subject, detail)


def _check_counters(
    findings: Findings,
    counters: list[tuple[float, tuple[int, ...]]],
    executions: dict[str, ExecutionFact],
    *,
    cancelled: int,
    at_rest: bool,
) -> None:
    for moment, (dispatched, launched, finished) in counters:
        detail = f"dispatched {dispatched}, launched {launched}, finished {finished}"
        ordered = 0 <= finished <= launched <= dispatched
        findings.expect(ordered, "counts-out-of-order", f"ledger at {moment:.3f}", detail)
    for (_, before), (moment, after) in pairwise(counters):
        backwards = any(late < early for early, late in zip(before, after, strict=True))
        findings.expect(not backwards, "counter-went-back", f"ledger at {moment:.3f}", f"{before} then {after}")
    _check_closed_once(
        findings, counters, executions, others=findings.figures.get("unrecorded_executions", 0) + cancelled
    )
    most = [max((values[index] for _, values in counters), default=0) for index in range(3)]
    closed = sum(fact.closed_at is not None for fact in executions.values())
    unrecorded = findings.figures.get("unrecorded_executions", 0)
    dispatched = max(most[0], len(executions) + unrecorded)
    unlaunched = f"{unrecorded} known from groups alone, {cancelled} cancelled while queued"
    detail = f"{most[2]} counted, {len(executions)} recorded, {unlaunched}"
    exist = most[2] <= len(executions) + unrecorded + cancelled
    findings.expect(exist, "finished-exceeds-executions", "run", detail)
    lost = at_rest and closed + unrecorded + cancelled < dispatched
    findings.expect(not lost, "execution-lost", "run", f"{dispatched} dispatched, {closed} closed, {unlaunched}")
    # The Scheduler's own counts may lag behind the rows, and the other way round: a row says what is sure.
    launched = max(most[1], len(executions) + unrecorded)
    counts = {"dispatched": dispatched, "launched": launched, "finished": max(most[2], closed + unrecorded)}
    findings.figures["counts"] = counts


def _check_closed_once(
    findings: Findings,
    counters: list[tuple[float, tuple[int, ...]]],
    executions: dict[str, ExecutionFact],
    *,
    others: int,
) -> None:
    """Nobody is counted as finished before it has closed. Swept executions close on record after they are counted, and
    those that left no row (`others`) have no moment: any of them may have been counted."""
    swept = sum(fact.closed_at is None or fact.end_reason in _SWEPT for fact in executions.values())
    closed = sorted(
        fact.closed_at for fact in executions.values() if fact.closed_at is not None and fact.end_reason not in _SWEPT
    )
    for moment, (_, _, finished) in counters:
        by_then = bisect_right(closed, moment + SKEW_SECONDS)
        detail = f"{finished} counted, {by_then} closed, {swept + others} more at most"
        counted_once = finished <= by_then + swept + others
        findings.expect(counted_once, "execution-closed-twice", f"ledger at {moment:.3f}", detail)


def _check_leaving(findings: Findings, timelines: Timelines, departures: list[Departure]) -> None:
    moves = Counter(cell for departure in departures for cell in departure.cells)
    leaving = [(interval, cell) for cell, timeline in timelines.cells.items() for interval in timeline.leaving]
    for cell, timeline in timelines.cells.items():
        detail = f"{len(timeline.leaving)} departures, {moves[cell]} moves in the ledger"
        findings.expect(len(timeline.leaving) <= moves[cell], "transition-without-move", f"cell {cell}", detail)
    leaving.sort(key=lambda item: item[0].start)
    for (first, one), (second, other) in pairwise(leaving):
        detail = f"cell {other} started {first.end - second.start:.3f} s before cell {one} had ended"
        overlap = second.start < first.end - SKEW_SECONDS and not _together(departures, (first, one), (second, other))
        findings.expect(not overlap, "transitions-overlap", f"cells {one} and {other}", detail)


def _together(departures: list[Departure], *leaving: tuple[Interval, int]) -> bool:
    """Whether one decision sent both: the last one before each of them that names its cell."""
    entries = set[int | None]()
    for interval, cell in leaving:
        named = [d for d in departures if cell in d.cells and d.at <= interval.start + SKEW_SECONDS]
        entries.add(max(named, key=lambda d: d.at).entry if named else None)
    return len(entries) == 1 and None not in entries
