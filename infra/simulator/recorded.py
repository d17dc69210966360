"""A recorded run as a scenario and a workload: what would the other policies have done with these executions?

Model time of an execution is the time in which at least one of its calls was open, tool time the rest of its wall
time; to the latter comes what a slot stood empty between two executions while others were queued. The first wave of
executions tells how fast they can be started. Training time of a group is what cells spent on the micro-steps of it
that counted last. Role changes and the gaps between bursts are the run's own averages. Recorded times are those of the
run's load, so engines are taken not to slow down further.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from sqlalchemy import Connection, Engine, select

from infra.records.schema import batches, calls, executions, ledger
from infra.settings.fleet import Fleet
from infra.simulator.recorded_training import Moves, read_moves, read_training
from infra.simulator.scenario import DEFAULT_VARIANTS, Durations, Engines, Scenario, TrainingModel, Transitions
from infra.simulator.workload import Recorded, Work
from workflows.messages import ids
from workflows.messages.errors import InvalidInput


@dataclass(frozen=True)
class RecordedRun:
    """`seconds`: from the first launch to the last update, as it really went."""

    scenario: Scenario
    workload: Recorded
    seconds: float
    groups: int


def read_run(engine: Engine, fleet: Fleet) -> RecordedRun:
    """The run in this database. Raises InvalidInput when it holds no finished training batch."""
    with engine.connect() as connection:
        done = _committed(connection)
        if not done:
            raise InvalidInput("the run has no committed batch with groups; there is nothing to compare with")
        members = _executions(connection, {row.burst for row in done})
        complete = [group for group in members.values() if group]
        trained = read_training(connection, done)
        moves = read_moves(connection)
        waiting = _waiting(connection)
    training = {group: sum(seconds) for group, seconds in trained.micro_steps.items()}
    per_step = round(median(len(row.groups) for row in done))
    size = round(median(len(group) for group in complete))
    by_burst = _by_burst(done)
    burst_steps = round(median(len(rows) for rows in by_burst))
    mean_training = fmean(training.values()) if training else 0.0
    cells = len([cell for cell in fleet.cells if cell.trains])
    slots = sum(cell.slots for cell in fleet.cells)
    launching = _launch_seconds(members, slots)
    sizes = {cell.index: cell.slots for cell in fleet.cells}
    away = [(sizes.get(cell, 0), left, back) for cell, left, back in moves.absences]
    between = max(0.0, _slot_gap(members, slots, away) - launching)
    launched = min(start for group in complete for _, _, start in group)
    works = [
        [
            Work(
                model + tool + between,
                _share(model, tool + between),
                _weight(training, key, mean_training),
                start - launched,
            )
            for model, tool, start in group
        ]
        for key, group in sorted(members.items())
    ]
    cuts = [trained.micro_steps.get(ids.group_id(burst, group), ()) for _, burst, group in sorted(members)]
    scenario = Scenario(
        name=f"run {fleet.run}",
        nodes=cells,
        cells=cells,
        groups_per_step=per_step,
        executions_per_group=size,
        steps=len(done),
        burst_steps=burst_steps,
        staleness=_carry_over(by_burst, members, per_step, burst_steps) + (burst_steps - 1) / 2,
        durations=Durations(mean_seconds=max(1e-3, fmean(model + tool for g in complete for model, tool, _ in g))),
        engines=Engines(
            slots=sum(cell.slots for cell in fleet.cells if cell.trains),
            standalone_slots=sum(cell.slots for cell in fleet.cells if not cell.trains),
            slowdown=0.0,
            launch_seconds=launching,
            backlog_seconds=_backlog(members, trained.admitted, slots),
        ),
        training=TrainingModel(
            step_seconds=max(1e-6, mean_training * per_step / cells),
            update_seconds=trained.update_seconds,
            admission_seconds=trained.admission_seconds,
            opening_seconds=trained.opening_seconds,
            pickup_seconds=trained.pickup_seconds(moves),
            claim_seconds=trained.claim_seconds,
            follows_duration=False,
            micro_steps_per_group=round(median(map(len, trained.micro_steps.values()))) if training else 1,
        ),
        transitions=Transitions(
            to_training_seconds=moves.to_training_seconds,
            to_rollout_seconds=moves.to_rollout_seconds,
            join_seconds=trained.join_seconds(moves),
            reroute_seconds=0.0,
            boundary_seconds=_gap(by_burst, members, moves),
            first_batch_seconds=_first_batch(by_burst, members),
        ),
        variants=tuple(variant.model_copy(update={"shares": "claimed"}) for variant in DEFAULT_VARIANTS),
    )
    seconds = max(row.committed_at for row in done) - launched
    scenario = Scenario.model_validate(scenario.model_dump() | waiting)
    return RecordedRun(scenario, Recorded(works, cuts), seconds, len(complete))


_Member = tuple[float, float, float]
"""(model seconds, tool seconds, start)."""
_Away = tuple[int, float, float]
"""(slots, from when, until when they did not serve)."""


def _committed(connection: Connection) -> list[Any]:
    """Batches with an update and with groups. Columns are named: a run recorded before a later one came is read too."""
    table = batches
    query = select(table.c.batch, table.c.burst, table.c.opened_at, table.c.committed_at, table.c.groups)
    rows = connection.execute(query.where(table.c.committed_at.is_not(None)).order_by(table.c.committed_at))
    return [row for row in rows if row.groups]


def _by_burst(done: Iterable[Any]) -> list[list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for row in done:
        found[row.burst].append(row)
    return list(found.values())


def _executions(connection: Connection, bursts: set[str]) -> dict[tuple[float, str, int], list[_Member]]:
    """Closed executions of the bursts by group, in order of dispatch."""
    table = executions
    query = select(table.c.execution, table.c.burst, table.c.group_index, table.c.prepared_at, table.c.ended_at)
    query = query.where(table.c.burst.in_(bursts), table.c.ended_at.is_not(None), table.c.prepared_at.is_not(None))
    rows = connection.execute(query.order_by(table.c.prepared_at)).all()
    first: dict[str, float] = {}
    for row in rows:
        first[row.burst] = min(first.get(row.burst, row.prepared_at), row.prepared_at)
    busy = _model_seconds(connection)
    found: dict[tuple[float, str, int], list[_Member]] = defaultdict(list)
    for row in rows:
        wall = max(1e-3, row.ended_at - row.prepared_at)
        model = min(wall, busy.get(row.execution, 0.0))
        found[(first[row.burst], row.burst, row.group_index)].append((model, wall - model, row.prepared_at))
    return found


def _model_seconds(connection: Connection) -> dict[str, float]:
    """Seconds in which at least one call of the execution was open."""
    query = select(calls.c.execution, calls.c.started_at, calls.c.ended_at).where(calls.c.ended_at.is_not(None))
    total: dict[str, float] = defaultdict(float)
    until: dict[str, float] = {}
    for row in connection.execute(query.order_by(calls.c.execution, calls.c.started_at)):
        start = max(row.started_at, until.get(row.execution, row.started_at))
        total[row.execution] += max(0.0, row.ended_at - start)
        until[row.execution] = max(row.ended_at, until.get(row.execution, row.ended_at))
    return total


def _weight(training: dict[str, float], key: tuple[float, str, int], mean: float) -> float:
    """Training work of a group's executions, 1 on average; of a group that was never trained, the average."""
    _, burst, group = key
    return training.get(ids.group_id(burst, group), mean) / mean if mean > 0 else 1.0


def _waiting(connection: Connection) -> dict[str, float]:
    """The supply fraction and the hold interval that the scheduler decided with; empty when it never decided."""
    query = select(ledger.c.state).where(ledger.c.kind.in_(("move", "refuse"))).order_by(ledger.c.entry).limit(1)
    state = connection.execute(query).scalar_one_or_none() or {}
    return {name: state[name] for name in ("supply_fraction", "hold_seconds") if name in state}


def _slot_gap(members: dict[tuple[float, str, int], list[_Member]], slots: int, away: Sequence[_Away]) -> float:
    """Seconds a slot stands empty per execution while executions are queued: from a burst's first launch to its last.

    Then every slot of a cell that serves waits for an execution if it has none.
    """
    spans = [(start, start + model + tool) for group in members.values() for model, tool, start in group]
    gaps: list[float] = []
    for starts in _starts(members):
        # What is empty when a burst begins has to be filled first: how long that takes is what `_launch_seconds` says.
        serving = slots - sum(missing for missing, left, back in away if left <= starts[0] < back)
        free = max(1, serving - sum(start < starts[0] <= end for start, end in spans))
        first, last = starts[min(free, len(starts)) - 1], starts[-1]
        used = sum(max(0.0, min(end, last) - max(start, first)) for start, end in spans)
        used += sum(missing * max(0.0, min(back, last) - max(left, first)) for missing, left, back in away)
        late = sum(start > first for start in starts)
        if len(starts) > serving and late:
            gaps.append(max(0.0, slots * (last - first) - used) / late)
    return median(gaps) if gaps else 0.0


def _launch_seconds(members: dict[tuple[float, str, int], list[_Member]], slots: int) -> float:
    """Seconds from one start to the next while the first burst fills the empty slots."""
    wave = _starts(members)[0][:slots]
    return (wave[-1] - wave[0]) / (len(wave) - 1) if len(wave) > 1 else 0.0


def _backlog(members: dict[tuple[float, str, int], list[_Member]], admitted: dict[str, float], slots: int) -> float:
    """Until when, from the first launch, the control plane was behind: if a group ended while the empty slots were
    being filled, to the admission of the last one that ended while earlier ones still waited for theirs."""
    wave = _starts(members)[0][:slots]
    ended = sorted(
        (max(start + model + tool for model, tool, start in group), ids.group_id(burst, number))
        for (_, burst, number), group in members.items()
        if group
    )
    until, waiting = ended[0][0], 0
    for at, group in ended:
        if at > until:
            break
        until, waiting = max(until, admitted.get(group, at)), waiting + 1
    return until - wave[0] if waiting > 1 and ended[0][0] < wave[-1] else 0.0


def _starts(members: dict[tuple[float, str, int], list[_Member]]) -> list[list[float]]:
    """When the executions of each burst started, bursts in order."""
    bursts: dict[tuple[float, str], list[float]] = defaultdict(list)
    for (first, burst, _), group in members.items():
        bursts[first, burst] += [start for _, _, start in group]
    return [sorted(starts) for _, starts in sorted(bursts.items())]


def _share(model: float, tool: float) -> float:
    return round(model / (model + tool), 1)


def _carry_over(
    by_burst: list[list[Any]], members: dict[tuple[float, str, int], list[_Member]], per_step: int, steps: int
) -> float:
    """phi: what the first burst dispatched beyond what it trained; a single burst carries nothing over."""
    if len(by_burst) < 2:
        return 0.0
    first = by_burst[0][0].burst
    dispatched = sum(burst == first for _, burst, _ in members)
    return max(0.0, dispatched / per_step - steps)


def _gap(by_burst: list[list[Any]], members: dict[tuple[float, str, int], list[_Member]], moves: Moves) -> float:
    """From a burst's last update to the first launch of the next one, less what returning cells take of that."""
    gaps: list[float] = []
    for end, start in _boundaries(by_burst, members):
        returned = moves.back_within(end, start)
        gaps.append(start - end - (moves.to_rollout_seconds if returned else 0.0))
    return max(0.0, median(gaps)) if gaps else 0.0


def _first_batch(by_burst: list[list[Any]], members: dict[tuple[float, str, int], list[_Member]]) -> float:
    """From a burst's first launch to its first batch; of the bursts after the first, which fills the engines."""
    opened = {rows[0].burst: min(row.opened_at for row in rows) for rows in by_burst}
    starts = _first_launches(members)
    waits = [max(0.0, opened[burst] - at) for burst, at in starts[1:] if burst in opened]
    return median(waits) if waits else 0.0


def _boundaries(by_burst: list[list[Any]], members: dict[tuple[float, str, int], list[_Member]]):
    """(a burst's last update, the first launch of the next one)."""
    ends = {rows[0].burst: max(row.committed_at for row in rows) for rows in by_burst}
    for (before, _), (_, start) in itertools.pairwise(_first_launches(members)):
        if before in ends:
            yield ends[before], start


def _first_launches(members: dict[tuple[float, str, int], list[_Member]]) -> list[tuple[str, float]]:
    """(burst, when its first execution started), in order."""
    starts: dict[str, float] = {}
    for (_, burst, _), group in members.items():
        for _, _, start in group:
            starts[burst] = min(starts.get(burst, start), start)
    return sorted(starts.items(), key=lambda one: one[1])
