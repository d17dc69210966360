"""The supply tests: is there training data for one more cell, and has there been for long enough?"""

from math import ceil

from workflows.policy.state import Hold, PolicyState

_ROUNDING = 1e-9
"""A fraction is written in decimals: 0.28 of 25 groups are 7, though the product of the floats is a little more."""


def supply(state: PolicyState) -> int:
    """s = min(ready unassigned groups, groups the open batch still needs)."""
    needed = state.batch.needed if state.batch else 0
    return min(state.ready_unassigned, needed)


def threshold(state: PolicyState, cell: int | None) -> int:
    """Groups cell `cell` must see; None: any satellite.

    A satellite: max(1, ceil(fraction * B)), so nobody joins near the end of a batch. The core: capped by what the
    batch still needs, or a core that comes back late would wait for ever. Without streaming nobody starts before all
    groups are there: those of the batch, or of the whole burst where the burst is shuffled (`burst_needed`); near its
    end no satellite joins either.
    """
    share = ceil(state.supply_fraction * state.groups_per_step - _ROUNDING)
    if not state.streaming and state.batch is not None:
        return max(1, state.batch.needed, 0 if cell == state.core else share)
    if cell == state.core and state.batch is not None:
        share = min(share, state.batch.needed)
    return max(1, share)


def supply_holds(state: PolicyState, cell: int) -> bool:
    """Whether cell `cell` sees enough training data now.

    A batch that needs no more groups is ended by the core alone. A core that was lost after the last group had been
    assigned comes back to exactly that, so then the test holds for it: no supply will ever come.
    """
    if cell == state.core and state.batch is not None and state.batch.needed == 0:
        return state.groups_per_step > 0
    if not state.streaming and state.burst_needed is not None and state.ready_unassigned < state.burst_needed:
        return False
    return supply(state) >= threshold(state, cell)


def hold_after(state: PolicyState, cell: int, hold: Hold | None) -> Hold | None:
    """The hold after looking at `state`: kept while the test holds for the same cell, restarted by any dip."""
    if not supply_holds(state, cell):
        return None
    if hold is not None and hold.cell == cell and hold.since <= state.now:
        return hold
    return Hold(cell=cell, since=state.now)
