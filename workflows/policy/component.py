"""Components of the pipeline as the `throughput` policy sees them: what each holds, does and still has to do.

An iteration that needs all components runs at the pace of the slowest. Units of one `resource` may move between its
components (cells between rollout and training; processor slots between harnesses and evaluators), never to another.
"""

from enum import StrEnum

from pydantic import Field

from workflows.messages.base import Message

CELLS, SLOTS = "cells", "slots"


class Component(StrEnum):
    """The nodes of the graph, in the order in which work passes through them."""

    ROLLOUT = "rollout"
    HARNESS = "harness"
    EVALUATOR = "evaluator"
    TRAINING = "training"


class Strategy(StrEnum):
    """How a worker group gives up or takes on resources, cheapest first; reboot is what always works."""

    SUSPEND = "suspend"
    RESIZE = "resize"
    MOVE_STATE = "move_state"
    REBOOT = "reboot"


class Verb(StrEnum):
    """What is done to a component's worker group; `workflows.policy.worker_groups` says by which steps."""

    RESUME = "resume"
    RESIZE = "resize"
    MOVE_STATE = "move_state"
    SUSPEND = "suspend"
    REBOOT = "reboot"


class Measurement(Message):
    """One window of a component: items it finished, slot-seconds it was busy with them, and how full it was (0..1)."""

    items: float = Field(ge=0)
    busy_seconds: float = Field(ge=0)
    load: float = Field(ge=0)

    @property
    def seconds_per_item(self) -> float | None:
        return self.busy_seconds / self.items if self.items > 0 and self.busy_seconds > 0 else None

    @property
    def idle(self) -> bool:
        """Nothing was there to work on."""
        return not self.items and not self.busy_seconds


class ComponentView(Message):
    """One component.

    `slots_per_unit`: items one unit works on at once. `peak_items`: the most items it could have had to work on at
    once in the recent past, so that a component which waits for another one is not taken for a slow one.
    `items_per_iteration`: what one iteration needs of it. `utilisations`: share of busy slots of each unit now.
    `recent`: measurements since the last look, oldest first. `strategies`: seconds each supported migration takes.
    """

    name: Component
    resource: str = CELLS
    units: int = Field(ge=0)
    slots_per_unit: float = Field(gt=0)
    peak_items: float = Field(ge=0)
    items_per_iteration: float = Field(ge=0)
    utilisations: tuple[float, ...] = ()
    recent: tuple[Measurement, ...] = ()
    min_units: int = Field(default=1, ge=0)
    max_units: int | None = None
    strategies: dict[Strategy, float] = Field(default={Strategy.REBOOT: 60.0}, min_length=1)


class Action(Message):
    """One step of a migration, for one component's worker group."""

    component: Component
    verb: Verb
    units: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.component} {self.verb}"


class Plan(Message):
    """A reallocation of `units` from one component to another, and what it is expected to do to an iteration."""

    donor: Component
    receiver: Component
    units: int = Field(ge=1)
    seconds_before: float
    seconds_after: float
    migration_seconds: float
    bottleneck: Component
    actions: tuple[Action, ...] = ()

    @property
    def gain_seconds(self) -> float:
        """Seconds saved per iteration, without the migration."""
        return self.seconds_before - self.seconds_after
