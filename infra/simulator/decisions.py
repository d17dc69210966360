"""One decision of each policy on given books: what `gyre bench decide` times."""

from collections.abc import Sequence

from workflows.messages.fleet import CellRole
from workflows.policy import registry
from workflows.policy.component import CELLS, SLOTS, Component, ComponentView, Measurement, Strategy
from workflows.policy.memory import Memory
from workflows.policy.state import BatchView, CellView, Decision, PolicyState
from workflows.policy.throughput import best_plan

POLICIES = tuple(registry.POLICIES)


def decision(
    policy: str, cells: Sequence[CellView], dispatched: int, launched: int, finished: int, ready: int
) -> Decision:
    """Build the state of a run in mid-burst, validated as the scheduler's is, and ask."""
    state = PolicyState(
        now=1000.0,
        dispatched=dispatched,
        launched=launched,
        finished=finished,
        cells=tuple(cells),
        ready_unassigned=ready,
        batch=BatchView(batch="b", needed=64),
        groups_per_step=64,
        supply_fraction=0.5,
        hold_seconds=10.0,
        components=pipeline(len(cells), 8),
    )
    return registry.decide(policy, state, Memory())[0]


class PlanCase:
    """A pool of `gpus`, one GPU a unit, whose rollout side is nearly idle: every candidate has to be predicted."""

    def __init__(self, gpus: int) -> None:
        training = gpus // 4
        cells = tuple(
            CellView(
                index=index,
                role=CellRole.TRAINING if index < training else CellRole.ROLLOUT,
                slots=8,
                serving=index >= training,
            )
            for index in range(gpus)
        )
        self.state = PolicyState(
            now=1000.0,
            dispatched=gpus * 4,
            launched=gpus * 4,
            finished=gpus * 4 - 1,
            cells=cells,
            batch=BatchView(batch="b", needed=gpus),
            groups_per_step=gpus,
            supply_fraction=0.5,
            hold_seconds=10.0,
            components=pipeline(gpus - training, training),
        )
        _, self.memory = registry.decide("throughput", self.state, Memory())

    def plan(self) -> object:
        """The whole decision: calibrate, find donors, search; the donors have been idle long enough."""
        later = self.state.model_copy(update={"now": 1000.0 + self.state.throughput.low_seconds})
        answer, _ = registry.decide("throughput", later, self.memory)
        return answer.plan

    def search(self) -> object:
        """The search alone, from every component."""
        return best_plan(self.state, self.memory, list(self.state.components))


def pipeline(rollout: int, training: int) -> tuple[ComponentView, ...]:
    """Four components as measured in mid-burst; rollout has little to do, training is behind."""
    window = (Measurement(items=64, busy_seconds=6400, load=0.5), Measurement(items=60, busy_seconds=6600, load=0.7))
    slow = (Measurement(items=8, busy_seconds=4000, load=1.0),)

    def view(name: Component, resource: str, units: int, slots: float, items: float, load: float) -> ComponentView:
        return ComponentView(
            name=name,
            resource=resource,
            units=units,
            slots_per_unit=slots,
            peak_items=items * 2,
            items_per_iteration=items,
            utilisations=(load,) * units,
            recent=slow if name is Component.TRAINING else window,
            strategies={Strategy.SUSPEND: 2.0, Strategy.REBOOT: 60.0},
        )

    return (
        view(Component.ROLLOUT, CELLS, rollout, 8, rollout * 2, 0.05),
        view(Component.HARNESS, SLOTS, 64, 1, rollout * 2, 0.5),
        view(Component.EVALUATOR, SLOTS, 16, 1, rollout * 2, 0.4),
        view(Component.TRAINING, CELLS, training, 1, rollout, 1.0),
    )
