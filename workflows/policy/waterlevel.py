"""The `waterlevel` policy: a cell leaves rollout when what is left behind covers the work that is out, and data waits.

    capacity    w <= C_R - C_e
    supply      min(ready unassigned, needed) >= threshold, without a break for the hold interval
    order       core first, then satellites by index, over the eligible cells, one transition at a time

With a single cell and no standalone engine it leaves only at w = 0: the policy degrades to colocate.
"""

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.answers import refuse as _refuse
from workflows.policy.bounds import forbidden
from workflows.policy.ordering import next_mover
from workflows.policy.state import BatchView, Decision, Hold, PolicyState, Reason, Verdict
from workflows.policy.supply import hold_after, supply, threshold


def decide(state: PolicyState, hold: Hold | None) -> tuple[Decision, Hold | None]:
    """The decision on `state`, and the hold to pass in next time."""
    core = state.cells[0]
    if core.role is CellRole.PARKED:
        return _refuse(core.index, Reason.CORE_PARKED, "the core is parked: training waits"), None
    if core.role in (CellRole.LOST, CellRole.STARTING):
        return _refuse(core.index, Reason.CORE_ABSENT, f"the core is {core.role.value}"), None
    mover = next_mover(state)
    if mover is None:
        return _refuse(None, Reason.NO_CELL, "every eligible cell is in training"), None
    if state.batch is None:
        return _refuse(mover.index, Reason.NO_BATCH, "no batch is open"), None
    hold = hold_after(state, mover.index, hold)
    if state.move_under_way:
        return _refuse(mover.index, Reason.MOVE_UNDER_WAY, "a rollout-to-training transition is under way"), hold
    if mover.role is not CellRole.ROLLOUT or not mover.serving:
        return _refuse(mover.index, Reason.NOT_SERVING, f"cell {mover.index} is {mover.role.value}, not serving"), hold
    if hold is None:
        detail = f"supply {supply(state)} < {threshold(state, mover.index)} groups"
        return _refuse(mover.index, Reason.SUPPLY, detail), None
    left = state.capacity - mover.slots
    if state.waterlevel > left:
        return _refuse(mover.index, Reason.CAPACITY, f"w {state.waterlevel} > C_R - C_e {left}"), hold
    # Compared as moments, not as durations: now + recheck_seconds then really is the moment at which this passes.
    due = hold.since + state.hold_seconds
    if state.now < due:
        detail = f"supply has held {state.now - hold.since:.1f} of {state.hold_seconds:g} s"
        return _refuse(mover.index, Reason.HOLD, detail, recheck_seconds=due - state.now), hold
    limit = forbidden(state, [mover.index], Direction.TO_TRAINING)
    if limit:
        return _refuse(mover.index, Reason.BOUNDS, limit), hold
    detail = f"w {state.waterlevel} <= C_R - C_e {left}, {_supply_text(state, mover.index)}"
    return Decision(verdict=Verdict.MOVE, cell=mover.index, reason=Reason.ALL_TESTS_PASS, detail=detail), None


def core_may_stay(state: PolicyState, next_dispatch: int) -> Decision:
    """At a burst's end: may the core keep training for the next batch?

    Only if supply passes now and w + the next dispatch (in executions) fits the capacity without the core. `state`
    carries the next batch (`needed` = B); the core, being in training, is not part of its capacity.
    """
    core = state.core
    if supply(state) < threshold(state, core):
        return _refuse(core, Reason.SUPPLY, f"supply {supply(state)} < {threshold(state, core)} groups")
    demand = state.waterlevel + next_dispatch
    if demand > state.capacity:
        return _refuse(core, Reason.CAPACITY, f"w {state.waterlevel} + {next_dispatch} > capacity {state.capacity}")
    return Decision(verdict=Verdict.MOVE, cell=core, reason=Reason.ALL_TESTS_PASS, detail="the core stays in training")


def after_publish(state: PolicyState, groups_needed: int) -> PolicyState:
    """What the core would see right after the publish, staying in training: the others serve, save those that
    leave the fleet, and a new batch is open."""
    away = (CellRole.PARKED, CellRole.LOST, CellRole.STARTING, CellRole.RETIRING, CellRole.RETIRED)
    cells = tuple(
        cell.model_copy(update={"serving": cell.index != state.core and not cell.leaving and cell.role not in away})
        for cell in state.cells
    )
    batch = BatchView(batch="next", needed=groups_needed)
    return state.model_copy(update={"cells": cells, "batch": batch, "groups_per_step": groups_needed})


def _supply_text(state: PolicyState, cell: int) -> str:
    if state.batch is not None and state.batch.needed == 0:
        return "the batch has all its groups and waits for the core"
    return f"supply {supply(state)} >= {threshold(state, cell)}"
