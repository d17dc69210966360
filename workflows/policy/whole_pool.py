"""The `colocate` policy: the whole pool switches.

All cells serve until no execution is out (w = 0) or every group that the burst needs is ready; then all cells train
until the burst ends. Executions that are still out then wait without an engine until the pool comes back.
"""

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.answers import core_absence, move, refuse
from workflows.policy.bounds import forbidden, rollout_count, training_count
from workflows.policy.memory import Memory
from workflows.policy.state import Decision, PolicyState, Reason


def decide(state: PolicyState, memory: Memory) -> tuple[Decision, Memory]:
    """The whole pool, or nobody."""
    absence = core_absence(state)
    if absence is not None:
        return absence, memory
    if state.batch is None:
        return refuse(None, Reason.NO_BATCH, "no batch is open"), memory
    if state.move_under_way:
        return refuse(None, Reason.MOVE_UNDER_WAY, "a transition is under way"), memory
    pool = [cell for cell in state.cells if cell.eligible and cell.role is not CellRole.TRAINING]
    if not pool:
        return refuse(None, Reason.NO_CELL, "every cell of the pool is in training"), memory
    room = _room(state, len(pool))
    if room <= 0:
        return refuse(pool[0].index, Reason.BOUNDS, forbidden(state, [pool[0].index], Direction.TO_TRAINING)), memory
    pool = pool[:room]
    if any(cell.role is not CellRole.ROLLOUT for cell in pool):
        return refuse(pool[0].index, Reason.NOT_SERVING, "the pool is not complete yet"), memory
    wanted = state.batch.needed if state.burst_needed is None else state.burst_needed
    if state.ready_unassigned >= wanted:
        return _all(state, [cell.index for cell in pool], f"all {wanted} groups of the burst are ready"), memory
    if state.waterlevel == 0 and (state.ready_unassigned > 0 or state.batch.needed == 0):
        return _all(state, [cell.index for cell in pool], "no execution is out"), memory
    detail = f"w {state.waterlevel}, {state.ready_unassigned} of {wanted} groups ready"
    return refuse(pool[0].index, Reason.CAPACITY, detail), memory


def at_burst_end(state: PolicyState, next_dispatch: int) -> tuple[int, ...]:
    """Everybody serves again."""
    return ()


def _room(state: PolicyState, pool: int) -> int:
    """How many of the pool the bounds let go."""
    room = min(pool, rollout_count(state) - state.bounds.min_rollout_cells)
    most = state.bounds.max_training_cells
    return room if most is None else min(room, most - training_count(state))


def _all(state: PolicyState, pool: list[int], detail: str) -> Decision:
    return move(state, pool, Reason.POOL, detail)
