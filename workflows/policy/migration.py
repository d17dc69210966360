"""How a plan's units change sides: what to do, in which order, and what it takes.

Each worker group says which strategies it supports and how long each takes; the quickest one is used, reboot is what
always works. What takes on does so before anything is given up, so that a failure leaves the old allocation standing.
Cells cannot hold both roles' memory at once: there the donor is suspended (its processes stay) before the receiver
resumes.
"""

from workflows.policy.component import CELLS, Action, ComponentView, Strategy, Verb

_GIVING = {
    Strategy.SUSPEND: Verb.SUSPEND,
    Strategy.RESIZE: Verb.RESIZE,
    Strategy.MOVE_STATE: Verb.MOVE_STATE,
    Strategy.REBOOT: Verb.REBOOT,
}
_TAKING = {**_GIVING, Strategy.SUSPEND: Verb.RESUME}


def strategy_of(view: ComponentView) -> Strategy:
    """The quickest migration that the component's worker group supports; the simpler one among equals."""
    order = list(Strategy)
    return min(view.strategies, key=lambda strategy: (view.strategies[strategy], order.index(strategy)))


def migration_seconds(donor: ComponentView, receiver: ComponentView) -> float:
    """How long the units serve neither side."""
    return donor.strategies[strategy_of(donor)] + receiver.strategies[strategy_of(receiver)]


def actions_of(donor: ComponentView, receiver: ComponentView, units: int) -> tuple[Action, ...]:
    """The steps of a reallocation in order."""
    give = Action(component=donor.name, verb=_GIVING[strategy_of(donor)], units=units)
    take = Action(component=receiver.name, verb=_TAKING[strategy_of(receiver)], units=units)
    return (give, take) if donor.resource == CELLS else (take, give)
