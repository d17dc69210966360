"""A way out for executions that nobody serves any more, whatever the policy.

A policy may send the last serving cell away when no execution is out. If executions come afterwards (a group without
signal is replaced, a cell is lost) and training cannot go on without them, the run would wait for ever: then the
highest training cell goes back. The core keeps what it has accumulated, unless it is alone.
"""

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.ordering import training_cells
from workflows.policy.state import Decision, PolicyState, Reason, Verdict

_ON_THEIR_WAY = (CellRole.TO_ROLLOUT, CellRole.TO_TRAINING)


def starving(state: PolicyState) -> bool:
    """Executions are out, no engine serves or is about to, and the open batch cannot go on without them."""
    if state.batch is None or state.batch.needed == 0 or state.waterlevel == 0:
        return False
    # A stream goes on with any group; without one the batch (shuffled: the burst) has to be complete.
    whole = state.batch.needed if state.burst_needed is None else state.burst_needed
    if state.ready_unassigned >= (1 if state.streaming else whole):
        return False
    on_the_way = any(cell.role in _ON_THEIR_WAY or cell.role is CellRole.ROLLOUT for cell in state.cells)
    return state.capacity == 0 and not on_the_way


def would_starve(state: PolicyState, decision: Decision) -> bool:
    """Whether executions would starve with the cells of `decision` in training: `relief` would send them back."""
    if not decision.movers or decision.direction is not Direction.TO_TRAINING:
        return False
    there = {"role": CellRole.TRAINING, "serving": False}
    cells = tuple(cell.model_copy(update=there) if cell.index in decision.movers else cell for cell in state.cells)
    return starving(state.model_copy(update={"cells": cells}))


def relief(state: PolicyState) -> Decision | None:
    """The cell that goes back to serve, or None when nothing starves or nobody can."""
    training = training_cells(state)
    if not starving(state) or not training:
        return None
    return Decision(
        verdict=Verdict.MOVE,
        cell=training[-1],
        reason=Reason.STARVED,
        detail=f"w {state.waterlevel} and no engine: training waits for executions that nobody serves",
        direction=Direction.TO_ROLLOUT,
    )
