"""The `lending` policy: a fixed split whose training cells join rollout between steps.

A training cell that has nothing to train on before a step has begun serves; it comes back when the step's groups are
there (all of them, or the supply fraction when training streams). Within a step nobody is lent.
"""

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy import whole_pool
from workflows.policy.answers import core_absence, move, refuse
from workflows.policy.fixed_split import alone, trainers
from workflows.policy.memory import Memory
from workflows.policy.state import Decision, PolicyState, Reason
from workflows.policy.supply import supply, threshold


def decide(state: PolicyState, memory: Memory) -> tuple[Decision, Memory]:
    """Call the training side back when its step can begin; lend it while it cannot."""
    if alone(state):
        decision, memory = whole_pool.decide(state, memory)
        return decision.model_copy(update={"detail": f"a single cell cannot be lent; {decision.detail}"}), memory
    absence = core_absence(state)
    if absence is not None:
        return absence, memory
    if state.batch is None:
        return refuse(None, Reason.NO_BATCH, "no batch is open"), memory
    if state.move_under_way or any(cell.role is CellRole.TO_ROLLOUT for cell in trainers(state)):
        return refuse(None, Reason.MOVE_UNDER_WAY, "a transition is under way"), memory
    lent = [cell.index for cell in trainers(state) if cell.role is CellRole.ROLLOUT]
    here = [cell.index for cell in trainers(state) if cell.role is CellRole.TRAINING]
    between = state.batch.needed == state.groups_per_step and state.batch.needed > 0
    # Groups that no execution can add to any more are all that will come: train on what is there.
    enough = min(threshold(state, None), state.batch.needed) if state.waterlevel else min(1, state.batch.needed)
    text = f"supply {supply(state)} of {enough} groups"
    if not between or supply(state) >= enough:
        if lent:
            return move(state, lent, Reason.SPLIT, f"the step begins: {text}"), memory
        return refuse(None, Reason.SPLIT, f"{len(here)} cells train, the others serve"), memory
    if here and state.waterlevel > 0:
        return move(state, here, Reason.LENT, f"between steps: {text}", Direction.TO_ROLLOUT), memory
    return refuse(None, Reason.SUPPLY, f"{len(lent)} training cells are lent: {text}"), memory


def at_burst_end(state: PolicyState, next_dispatch: int) -> tuple[int, ...]:
    """Between two bursts is between two steps: nobody has to stay, so the training side serves."""
    if supply(state) >= threshold(state, None) and not alone(state):
        return tuple(cell.index for cell in trainers(state) if cell.role is CellRole.TRAINING)
    return ()
