"""The one interface by which worker groups give and take resources: what to do, in which order, and what it takes.

Each group says which strategies it supports and how long each takes; the cheapest one is used, reboot is what always
works. What is created is created before anything is destroyed, so that a failure leaves the old allocation standing.
Cells cannot hold both roles' memory at once: there the donor is suspended (its processes stay) before the receiver
resumes.
"""

from workflows.policy.component import CELLS, Action, ComponentView, Strategy

_TAKING = {
    Strategy.SUSPEND: "resume",
    Strategy.RESIZE: "resize",
    Strategy.MOVE_STATE: "move_state",
    Strategy.REBOOT: "reboot",
}


def strategy_of(view: ComponentView) -> Strategy:
    """The quickest migration that the component's worker group supports; the simpler one among equals."""
    order = list(Strategy)
    return min(view.strategies, key=lambda strategy: (view.strategies[strategy], order.index(strategy)))


def migration_seconds(donor: ComponentView, receiver: ComponentView) -> float:
    """How long the units serve neither side."""
    return donor.strategies[strategy_of(donor)] + receiver.strategies[strategy_of(receiver)]


def actions_of(donor: ComponentView, receiver: ComponentView, units: int) -> tuple[Action, ...]:
    """The steps of a reallocation in order."""
    take = Action(component=receiver.name, verb=_TAKING[strategy_of(receiver)], units=units)
    if donor.resource == CELLS:
        give = "suspend" if strategy_of(donor) is Strategy.SUSPEND else _TAKING[strategy_of(donor)]
        return (Action(component=donor.name, verb=give, units=units), take)
    create = take if take.verb != "reboot" else Action(component=receiver.name, verb="create", units=units)
    return (create, Action(component=donor.name, verb="destroy", units=units))
