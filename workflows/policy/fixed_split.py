"""The `async` policy: a fixed split. The first `split` eligible cells train for good, the others serve for good.

Training idles while it waits for groups, rollout while it waits for dispatch. A cell that trains beyond the split (it
was on its way when the split was frozen, or stood in for a parked one) goes back between two batches, when nothing that
it has accumulated is lost. With a single cell and no standalone engine there is nothing to split: the policy degrades
to `colocate` and says so.
"""

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy import whole_pool
from workflows.policy.answers import core_absence, move, refuse
from workflows.policy.bounds import split_of
from workflows.policy.memory import Memory
from workflows.policy.state import CellView, Decision, PolicyState, Reason


def trainers(state: PolicyState) -> list[CellView]:
    """The cells that hold the training side: the first ones that are eligible."""
    return [cell for cell in state.cells if cell.eligible][: split_of(state)]


def alone(state: PolicyState) -> bool:
    """One cell has to do everything."""
    return len(state.cells) == 1 and not state.standalone_slots


def decide(state: PolicyState, memory: Memory) -> tuple[Decision, Memory]:
    """Bring the split about, one cell at a time, and send back who is beyond it; then nothing moves."""
    if alone(state):
        decision, memory = whole_pool.decide(state, memory)
        return decision.model_copy(update={"detail": f"a single cell cannot be split; {decision.detail}"}), memory
    absence = core_absence(state)
    if absence is not None:
        return absence, memory
    held = trainers(state)
    missing = [cell for cell in held if cell.role is not CellRole.TRAINING]
    if not missing:
        others = [cell for cell in state.cells if cell not in held and not cell.leaving]
        beyond = [cell.index for cell in others if cell.role is CellRole.TRAINING]
        if beyond and state.batch is None:
            detail = f"beyond the {split_of(state)} cells that train"
            return move(state, beyond[::-1], Reason.SPLIT, detail, Direction.TO_ROLLOUT), memory
        return refuse(None, Reason.SPLIT, f"{split_of(state)} cells train, the others serve"), memory
    cell = missing[0]
    if state.move_under_way:
        return refuse(cell.index, Reason.MOVE_UNDER_WAY, "a transition is under way"), memory
    if cell.role is not CellRole.ROLLOUT:
        return refuse(cell.index, Reason.NOT_SERVING, f"cell {cell.index} is {cell.role.value}"), memory
    return move(state, [cell.index], Reason.SPLIT, f"one of the {split_of(state)} cells that train"), memory


def at_burst_end(state: PolicyState, next_dispatch: int) -> tuple[int, ...]:
    """The training side goes on training."""
    if alone(state):
        return whole_pool.at_burst_end(state, next_dispatch)
    return tuple(cell.index for cell in trainers(state) if cell.role is CellRole.TRAINING)
