"""Who moves next: core first, then satellites by index, one at a time, over the eligible cells."""

from itertools import takewhile

from workflows.messages.fleet import CellRole
from workflows.policy.state import CellView, PolicyState


def next_mover(state: PolicyState) -> CellView | None:
    """The first eligible cell that is not in training, or None when all of them are."""
    for cell in state.cells:
        if cell.eligible and cell.role is not CellRole.TRAINING:
            return cell
    return None


def training_cells(state: PolicyState) -> tuple[int, ...]:
    """Indices of the cells in training, in their order."""
    return tuple(cell.index for cell in state.cells if cell.role is CellRole.TRAINING)


def is_prefix(state: PolicyState, mover: int) -> bool:
    """Every eligible cell before `mover` is in training: what must hold when `mover` leaves rollout."""
    before = takewhile(lambda cell: cell.index != mover, state.cells)
    return all(cell.role is CellRole.TRAINING for cell in before if cell.eligible)
