"""Decisions that moved something, with the transitions they led to and what changed afterwards.

A decision's transitions are found by cell, direction and time: a Cell takes its moves one after the other, so the
changes of a cell between a decision and the next one in the same direction are that decision's.

Realised change (docs/decisions/0082): the same rates in a window before the decision and in one after its last
transition. Neither reaches over another role change, so that a window shows one allocation; a window of less than
`LEAST_SECONDS` shows nothing. The realised gain, which a prediction is compared with, is in seconds per optimizer step:
whole steps between this move and the predicted ones around it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from infra.report.changes import ROLE_CHANGES, Change, Entry, Roles, roles_text
from infra.report.intervals import Cumulative

WINDOW_SECONDS = 60.0
"""The longest window before and after a move."""
LEAST_SECONDS = 1.0
STEPS_COMPARED = 3
"""Optimizer steps on each side that a realised gain is the mean of, at most."""
SKEW_SECONDS = 0.25


class Work:
    """What a run did: intervals [n, 2] in seconds since the epoch, and how much was done in each [n].

    `sampled`: segments and their output tokens; `trained`: micro-steps that counted and their target tokens.
    `finished_at`: ends of executions; `committed_at`: ends of optimizer steps.
    """

    def __init__(
        self,
        sampled: tuple[np.ndarray, np.ndarray],
        trained: tuple[np.ndarray, np.ndarray],
        finished_at: Sequence[float],
        committed_at: Sequence[float],
    ) -> None:
        self.sampled, self.trained = Cumulative(*sampled), Cumulative(*trained)
        self.begun_at = float(sampled[0][:, 0].min()) if len(sampled[0]) else float("-inf")
        self.finished_at, self.committed_at = np.sort(np.array(finished_at)), np.sort(np.array(committed_at))

    def rates(self, begin: float, end: float) -> "Rates | None":
        """What was done between two moments; None for too short a window. Nothing before the first token counts: that
        would be the rate of starting up."""
        begin = max(begin, self.begun_at)
        seconds = end - begin
        if not seconds >= LEAST_SECONDS:
            return None
        finished = np.diff(np.searchsorted(self.finished_at, [begin, end]))[0]
        return Rates(
            seconds=seconds,
            sampled_tokens=self.sampled.between(begin, end) / seconds,
            trained_tokens=self.trained.between(begin, end) / seconds,
            executions=float(finished) / seconds,
        )

    def step_seconds(self, begin: float, end: float, *, last: bool) -> float | None:
        """Mean seconds of the whole optimizer steps between two moments, at most `STEPS_COMPARED` of them: the last
        ones or the first ones. A step lasts from one commit to the next; None without any."""
        low, high = np.searchsorted(self.committed_at, [begin, end])
        lengths = np.diff(self.committed_at[low:high])
        chosen = lengths[-STEPS_COMPARED:] if last else lengths[:STEPS_COMPARED]
        return float(chosen.mean()) if len(chosen) else None


@dataclass(frozen=True)
class Rates:
    """What was done per second in a window of `seconds`."""

    seconds: float
    sampled_tokens: float
    trained_tokens: float
    executions: float


@dataclass(frozen=True)
class Move:
    """A decision and what came of it. One that moves processor slots has no cells and no transitions.

    `topology_before` is what the policy saw, `topology_after` where the cells were when the last of its transitions
    had ended. `before` and `after` are None where no window is long enough; `shared` decisions overlapped and show the
    same change. `realised_gain_seconds` is None where nothing was predicted, or no whole optimizer step lies on both
    sides; `judged_gain_seconds` is the Scheduler's own word on it, if it judged.
    """

    entry: Entry
    changes: tuple[Change, ...]
    topology_before: str
    topology_after: str
    before: Rates | None = None
    after: Rates | None = None
    shared: int = 1
    realised_gain_seconds: float | None = None
    judged_gain_seconds: float | None = None

    @property
    def ended_at(self) -> float | None:
        return max((change.ended_at for change in self.changes), default=None)

    @property
    def result(self) -> str:
        """done, or how the first of its cells that failed has ended; empty: nothing is on record (yet)."""
        last = {change.cell: change.result for change in self.changes}
        failed = [result for result in last.values() if result != "done"]
        return failed[0] if failed else "done" if last else ""

    @property
    def prediction_error(self) -> float | None:
        """|realised - expected| over the larger of both; None where nothing was predicted or nothing came of it."""
        expected, realised = self.entry.expected_gain_seconds, self.realised_gain_seconds
        if expected is None or realised is None:
            return None
        return abs(realised - expected) / max(abs(expected), abs(realised), 1e-9)


def moves_of(entries: Sequence[Entry], changes: Sequence[Change], roles: Roles, work: Work, end: float) -> list[Move]:
    """Every decision that sent cells somewhere, in order, with what came of it until `end`."""
    entries = sorted(entries, key=lambda entry: entry.at)
    sent = [entry for entry in entries if entry.heading]
    taken = _assigned(sent, changes)
    judged = {entry.about: entry.realised_gain_seconds for entry in entries if entry.kind == "outcome"}
    found = [_move(entry, tuple(taken.get(entry.token, ())), roles, judged.get(entry.token)) for entry in sent]
    return _gains(_changed_rates(found, changes, work, end), work)


def _assigned(sent: Sequence[Entry], changes: Sequence[Change]) -> dict[str, list[Change]]:
    """Decision -> its transitions, in order."""
    by_kind: dict[tuple[int, str], list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.started_at):
        by_kind[change.cell, change.direction].append(change)
    asked: dict[tuple[int, str], list[Entry]] = defaultdict(list)
    for entry in sent:
        for cell in entry.cells:
            asked[cell, entry.heading].append(entry)
    taken: dict[str, list[Change]] = defaultdict(list)
    for key, found in asked.items():
        limits = [*(entry.at - SKEW_SECONDS for entry in found[1:]), float("inf")]
        for entry, limit in zip(found, limits, strict=True):
            taken[entry.token] += [c for c in by_kind[key] if entry.at - SKEW_SECONDS <= c.started_at < limit]
    return {token: sorted(found, key=lambda change: change.started_at) for token, found in taken.items()}


def _move(entry: Entry, changes: tuple[Change, ...], roles: Roles, judged: float | None) -> Move:
    ended = max((change.ended_at for change in changes), default=None)
    return Move(
        entry=entry,
        changes=changes,
        topology_before=entry.topology or roles_text(roles.at(entry.at)),
        topology_after=roles_text(roles.at(ended)) if ended is not None else "",
        judged_gain_seconds=judged,
    )


def _changed_rates(moves: Sequence[Move], changes: Sequence[Change], work: Work, end: float) -> list[Move]:
    """The moves with their rates before and after; moves that overlap are weighed together."""
    role_changes = [change for change in changes if change.direction in ROLE_CHANGES]
    started = np.sort(np.array([change.started_at for change in role_changes]))
    ended = np.sort(np.array([change.ended_at for change in role_changes]))
    found = [move for move in moves if move.ended_at is None]
    for together in _overlapping([move for move in moves if move.ended_at is not None]):
        asked, done = together[0].entry.at, max(_end(move) for move in together)
        earlier, later = np.searchsorted(ended, asked, side="right"), np.searchsorted(started, done)
        since = max(asked - WINDOW_SECONDS, ended[earlier - 1] if earlier else float("-inf"))
        until = min(done + WINDOW_SECONDS, started[later] if later < len(started) else float("inf"), end)
        before, after = work.rates(since, asked), work.rates(done, until)
        found += [replace(move, before=before, after=after, shared=len(together)) for move in together]
    return sorted(found, key=lambda move: move.entry.at)


def _overlapping(moves: Sequence[Move]) -> list[list[Move]]:
    """Moves in order, those that overlap in one list."""
    found: list[list[Move]] = []
    until = float("-inf")
    for move in moves:
        if found and move.entry.at < until:
            found[-1].append(move)
        else:
            found.append([move])
        until = max(until, _end(move))
    return found


def _end(move: Move) -> float:
    return move.entry.at if move.ended_at is None else move.ended_at


def _gains(moves: Sequence[Move], work: Work) -> list[Move]:
    """The moves with the realised gain of those that a gain was predicted for."""
    predicted = [move for move in moves if move.entry.expected_gain_seconds is not None]
    gains: dict[str, float] = {}
    for index, move in enumerate(predicted):
        if move.entry.cells and not move.changes:
            continue  # not carried out (yet)
        since = _end(predicted[index - 1]) if index else float("-inf")
        until = predicted[index + 1].entry.at if index + 1 < len(predicted) else float("inf")
        before = work.step_seconds(since, move.entry.at, last=True)
        after = work.step_seconds(_end(move), until, last=False)
        if before is not None and after is not None:
            gains[move.entry.token] = before - after
    return [replace(move, realised_gain_seconds=gains.get(move.entry.token)) for move in moves]
