"""The fleet's bounds: they bind every policy, in both directions."""

from collections.abc import Iterable

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.state import CellView, PolicyState

_TRAINS = (CellRole.TRAINING, CellRole.TO_TRAINING)
_ROLLS = (CellRole.ROLLOUT, CellRole.TO_ROLLOUT)


def training_count(state: PolicyState) -> int:
    """Cells in training or on their way there."""
    return sum(cell.role in _TRAINS for cell in state.cells)


def rollout_count(state: PolicyState) -> int:
    """Cells in rollout or on their way there."""
    return sum(cell.role in _ROLLS for cell in state.cells)


def forbidden(state: PolicyState, movers: Iterable[int], direction: Direction) -> str:
    """Why the bounds forbid that `movers` go where `direction` says; empty when they allow it."""
    count, bounds = len(tuple(movers)), state.bounds
    into = count if direction is Direction.TO_TRAINING else -count
    training, rollout = training_count(state) + into, rollout_count(state) - into
    if bounds.max_training_cells is not None and into > 0 and training > bounds.max_training_cells:
        return f"{training} training cells, at most {bounds.max_training_cells}"
    if into > 0 and rollout < bounds.min_rollout_cells:
        return f"{rollout} rollout cells left, at least {bounds.min_rollout_cells}"
    if into < 0 and training < bounds.min_training_cells:
        return f"{training} training cells left, at least {bounds.min_training_cells}"
    return ""


def split_of(state: PolicyState) -> int:
    """Training cells that a policy with a split may hold: its own number within the bounds and the eligible cells.

    Without a standalone engine at least one cell is left to rollout, unless there is only one.
    """
    eligible = sum(cell.eligible for cell in state.cells)
    others = sum(not cell.trains and _present(cell) for cell in state.cells)
    floor = state.bounds.min_rollout_cells
    if not others and not state.standalone_slots and eligible > 1:
        floor = max(floor, 1)
    most = max(1, eligible + others - floor)
    if state.bounds.max_training_cells is not None:
        most = min(most, state.bounds.max_training_cells)
    return min(max(state.split, state.bounds.min_training_cells, 1), most, max(eligible, 1))


def _present(cell: CellView) -> bool:
    return cell.role not in (CellRole.PARKED, CellRole.LOST, CellRole.STARTING)
