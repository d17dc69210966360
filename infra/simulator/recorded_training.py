"""What training and role changes took in a recorded run, and what the control plane added to them.

Whatever happens many times is taken by its median: a step that was lost and given out again is an accident, not a cost.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from sqlalchemy import Connection, select

from infra.records.schema import claims, executions, groups, ledger, micro_steps, transitions
from workflows.messages import ids

DECIDED_SECONDS = 10.0
"""A move begins that soon after its decision; that soon after it has ended it is known."""


@dataclass(frozen=True)
class Claim:
    """A micro-step's counted claim. `begun_at`: when the cell was free for it; it computes one after the other."""

    batch: str
    number: int
    group: str
    cell: int
    claimed_at: float
    begun_at: float
    done_at: float


@dataclass(frozen=True)
class Moves:
    """`to_training_seconds`: from a decision until its end is known to the scheduler. `arrivals`: (cell, when that is,
    when it leaves again); `returns`: when cells began to go back; `absences`: (cell, from when, until when it did
    not serve)."""

    to_training_seconds: float = 0.0
    to_rollout_seconds: float = 0.0
    arrivals: tuple[tuple[int, float, float], ...] = ()
    returns: tuple[float, ...] = ()
    absences: tuple[tuple[int, float, float], ...] = ()

    def back_within(self, start: float, end: float) -> bool:
        return any(start <= at <= end for at in self.returns)


@dataclass(frozen=True)
class Training:
    """`micro_steps`: group -> seconds of one cell on each of its micro-steps, in their order.

    The rest as in `scenario.TrainingModel`. `batches`: rows of the committed ones; `admitted`: by group.
    """

    micro_steps: dict[str, tuple[float, ...]]
    update_seconds: float
    admission_seconds: float
    opening_seconds: float
    claim_seconds: float
    claims: tuple[Claim, ...] = field(repr=False)
    batches: dict[str, Any] = field(repr=False)
    admitted: dict[str, float] = field(repr=False)

    def arrivals(self, batch: str) -> dict[str, float]:
        """Group -> when it was admitted."""
        row = self.batches[batch]
        opened: float = row.opened_at
        return {group: self.admitted.get(group, opened) for group in row.groups}

    def join_seconds(self, moves: Moves) -> float:
        """From the end of a role change to the cell's first micro-step, where that did not wait for anything else."""
        waits: list[float] = []
        for cell, at, until in moves.arrivals:
            first = next((one for one in self.claims if one.cell == cell and at <= one.claimed_at < until), None)
            if first is not None:
                waits.append(first.claimed_at - max(at, _available(first, self)))
        return _median(waits)

    def pickup_seconds(self, moves: Moves) -> float:
        """From a batch's opening to its first claim, where nothing else was waited for: its groups had come, its first
        cell had trained the one before and stayed."""
        waits: list[float] = []
        for before, row in itertools.pairwise(self.batches.values()):
            found = [one for one in self.claims if one.batch == row.batch]
            if not found or max(self.arrivals(row.batch).values()) > row.opened_at:
                continue
            trained = {one.cell for one in self.claims if one.batch == before.batch}
            left = {cell for cell, at, _ in moves.arrivals if at > before.committed_at}
            if found[0].cell in trained - left:
                waits.append(found[0].claimed_at - row.opened_at)
        return _median(waits)


def read_training(connection: Connection, done: Sequence[Any]) -> Training:
    """Of the committed batches `done`, in order."""
    by_name = {row.batch: row for row in done}
    counted = _counted(connection, by_name.keys())
    admissions = connection.execute(select(groups.c.group_id, groups.c.admitted_at))
    admitted: dict[str, float] = {row.group_id: row.admitted_at for row in admissions}
    by_group: dict[str, list[Claim]] = defaultdict(list)
    by_batch: dict[str, list[Claim]] = defaultdict(list)
    for claim in counted:
        by_group[claim.group].append(claim)
        by_batch[claim.batch].append(claim)
    bursts: dict[str, list[Any]] = defaultdict(list)
    for row in done:
        bursts[row.burst].append(row)
    windows = [
        row.committed_at - max(row.opened_at, *(claim.done_at for claim in by_batch[row.batch]))
        for row in done
        if row.batch in by_batch
    ]
    openings = [b.opened_at - a.committed_at for rows in bursts.values() for a, b in itertools.pairwise(rows)]
    return Training(
        micro_steps={
            group: tuple(one.done_at - one.begun_at for one in sorted(found, key=lambda one: (one.batch, one.number)))
            for group, found in by_group.items()
        },
        update_seconds=_median(windows),
        admission_seconds=_median(_admissions(connection, admitted)),
        opening_seconds=_median(openings),
        claim_seconds=_median(_gaps(by_batch)),
        claims=tuple(sorted(counted, key=lambda one: one.claimed_at)),
        batches=by_name,
        admitted=admitted,
    )


def read_moves(connection: Connection) -> Moves:
    """The role changes that were done, from their decision where the ledger tells it."""
    decided: dict[tuple[str, int], list[float]] = defaultdict(list)
    looks: list[float] = []
    entries = select(ledger.c.kind, ledger.c.at, ledger.c.cell, ledger.c.direction, ledger.c.together)
    for row in connection.execute(entries.where(ledger.c.kind.in_(("move", "refuse"))).order_by(ledger.c.at)):
        looks.append(row.at)
        if row.kind == "move" and row.cell is not None:
            for cell in (row.cell, *(row.together or ())):
                decided[row.direction or "to_training", cell].append(row.at)
    changes = transitions.c
    query = select(changes.cell, changes.direction, changes.started_at, changes.ended_at)
    query = query.where(changes.result == "done").order_by(changes.started_at)
    found = [row for row in connection.execute(query) if row.direction in ("to_training", "to_rollout")]
    took: dict[str, list[float]] = defaultdict(list)
    arrivals: list[tuple[int, float, float]] = []
    absences: list[tuple[int, float, float]] = []
    for row in found:
        before = [at for at in decided[row.direction, row.cell] if at <= row.started_at]
        begun = max(before, default=row.started_at)
        if row.started_at - begun > DECIDED_SECONDS:
            begun = row.started_at  # asked for by something else
        end = row.ended_at
        if row.direction == "to_training":
            # The scheduler looks at what it may do next as soon as it knows.
            known = min((at for at in looks if at > end), default=end)
            end = known if known - end <= DECIDED_SECONDS else end
            left = (other.started_at for other in found if other.cell == row.cell and other.started_at > row.ended_at)
            arrivals.append((row.cell, end, min(left, default=float("inf"))))
            served = (other.ended_at for other in found if other.cell == row.cell and other.started_at > row.ended_at)
            absences.append((row.cell, row.started_at, min(served, default=float("inf"))))
        took[row.direction].append(end - begun)
    return Moves(
        to_training_seconds=fmean(took["to_training"] or [0.0]),
        to_rollout_seconds=fmean(took["to_rollout"] or [0.0]),
        arrivals=tuple(arrivals),
        returns=tuple(row.started_at for row in found if row.direction == "to_rollout"),
        absences=tuple(absences),
    )


def _counted(connection: Connection, committed: Iterable[str]) -> list[Claim]:
    """The last attempt of every micro-step, by their ends."""
    committed = set(committed)
    query = (
        select(
            micro_steps.c.group_id,
            claims.c.batch,
            claims.c.micro_step,
            claims.c.cell,
            claims.c.claimed_at,
            claims.c.done_at,
        )
        .join(claims, (claims.c.batch == micro_steps.c.batch) & (claims.c.micro_step == micro_steps.c.micro_step))
        .where(claims.c.done_at.is_not(None))
        .order_by(claims.c.attempt)
    )
    last = {(row.batch, row.micro_step): row for row in connection.execute(query) if row.batch in committed}
    free_at: dict[int, float] = {}
    found: list[Claim] = []
    for row in sorted(last.values(), key=lambda row: row.done_at):
        begun = min(row.done_at, max(row.claimed_at, free_at.get(row.cell, row.claimed_at)))
        found.append(Claim(row.batch, row.micro_step, row.group_id, row.cell, row.claimed_at, begun, row.done_at))
        free_at[row.cell] = row.done_at
    return found


def _admissions(connection: Connection, admitted: dict[str, float]) -> list[float]:
    """From the last execution of a group to its admission."""
    closed: dict[str, float] = {}
    query = select(executions.c.burst, executions.c.group_index, executions.c.ended_at)
    for row in connection.execute(query.where(executions.c.ended_at.is_not(None))):
        group = ids.group_id(row.burst, row.group_index)
        closed[group] = max(closed.get(group, row.ended_at), row.ended_at)
    return [at - closed[group] for group, at in admitted.items() if group in closed]


def _gaps(by_batch: dict[str, list[Claim]]) -> list[float]:
    """From one micro-step of a cell to its next one, where that was there: others of its group had been claimed."""
    gaps: list[float] = []
    for found in by_batch.values():
        first: dict[str, float] = {}
        last: dict[int, Claim] = {}
        for claim in sorted(found, key=lambda one: one.claimed_at):
            before = last.get(claim.cell)
            if before is not None and first.get(claim.group, before.done_at) < before.done_at:
                gaps.append(max(0.0, claim.claimed_at - before.done_at))
            first.setdefault(claim.group, claim.claimed_at)
            last[claim.cell] = claim
    return gaps


def _available(claim: Claim, training: Training) -> float:
    """When this micro-step could have been claimed: its group, or without streaming all its batch's, had come."""
    came = training.arrivals(claim.batch)
    first = min(one.claimed_at for one in training.claims if one.batch == claim.batch)
    last = max(came.values())
    return max(last if first >= last else came[claim.group], training.batches[claim.batch].opened_at)


def _median(values: Sequence[float]) -> float:
    return max(0.0, median(values)) if values else 0.0
