"""Staleness: version at the update minus version at dispatch, counted before the update."""


def expected_staleness(carry_over: float, steps: int) -> float:
    """E[d] = phi + (mu - 1) / 2, the group-weighted mean in steady state.

    After step j of a burst (phi + mu - j) * B groups are outstanding; summed over j and divided by mu * B.
    """
    return carry_over + (steps - 1) / 2


def carry_over_for(target: float, steps: int) -> float:
    """The phi that gives E[d] = `target`; negative when no phi can."""
    return target - (steps - 1) / 2
