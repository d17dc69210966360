"""What the Scheduler measures of its pipeline: the windows and loads that the `throughput` policy plans with.

One iteration, from one update to the next, is one window of every component. Executions and updates report their
seconds when they end; how busy cells and processor slots are is looked at regularly (`steps.MEASURE_PIPELINE`). Pure
bookkeeping: no clock, no Temporal.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.control import PipelineSample, SlotsInUse
from workflows.messages.execution import ExecutionClosed
from workflows.messages.fleet import CellRole, MoveCost
from workflows.messages.transition import Direction
from workflows.policy.component import Component, ComponentView, Measurement
from workflows.policy.pipeline import busy_slots, component_views
from workflows.policy.state import CellView

FORGET = 0.8
"""Weight of a measured role change relative to the next one."""
GUESS_SECONDS: Mapping[Direction, float] = {
    Direction.TO_TRAINING: 10.0,
    Direction.TO_ROLLOUT: 5.0,
    Direction.RETIRE: 10.0,
    Direction.TAKE_OVER: 10.0,
}
"""What a role change is taken to cost before one was measured."""


def with_load(state: dict[str, Any]) -> dict[str, Any]:
    """A Scheduler's state of format 1, whose telemetry had the integral of all slots, as one of format 2.

    Until the next update it counts as if executions had been spread evenly over the time.
    """
    telemetry = dict(state.get("telemetry", {}))
    slots = telemetry.pop("slot_seconds", 0.0)
    running = telemetry.get("running_seconds", 0.0)
    return {**state, "telemetry": {**telemetry, "load_seconds": running * running / slots if slots > 0 else 0.0}}


class Done(Message):
    """Work that ended since the last update: items, and the seconds they kept a slot."""

    items: int = 0
    seconds: float = 0.0

    def with_one(self, seconds: float) -> "Done":
        return Done(items=self.items + 1, seconds=self.seconds + seconds)


def cost_with(cost: MoveCost, seconds: float) -> MoveCost:
    """The cost with one more measured role change."""
    weight = (1 - FORGET) / (1 - FORGET ** (cost.count + 1))
    return MoveCost(count=cost.count + 1, mean_seconds=cost.mean_seconds + weight * (seconds - cost.mean_seconds))


class Telemetry(Message):
    """Everything measured; carried over when the Scheduler continues as new.

    `looked_at`, `running`, `capacity`: the last look, and what held from then on. Since the last update:
    `running_seconds`, the integral of what ran, and `load_seconds`, that of what ran times the share of slots it took;
    one over the other is the load that an execution met while it ran, whatever the engines did before and after.
    `committed_at`: the last update or the burst's dispatch; `iteration_seconds`: how long the last iteration took.
    `previous_peak`: the highest waterlevel after a dispatch, up to that of the burst that began last; `peak`: since
    then.
    """

    windows: dict[Component, tuple[Measurement, ...]] = {}
    executions: Done = Done()
    evaluations: Done = Done()
    peak: int = 0
    previous_peak: int = 0
    looked_at: float | None = None
    running: int = 0
    capacity: int = 0
    running_seconds: float = 0.0
    load_seconds: float = 0.0
    committed_at: float | None = None
    iteration_seconds: float | None = None
    sample: PipelineSample | None = None
    in_use: SlotsInUse | None = None
    since: float | None = Field(default=None, description="from when on samples are expected")
    costs: dict[Direction, MoveCost] = {}

    # --- what happens

    def began(self, now: float) -> "Telemetry":
        """A burst has dispatched: its first iteration is counted from here, whatever lay before. All its steps work off
        what it has dispatched, so the waterlevel it began with counts until the next one begins."""
        window = {"executions": Done(), "evaluations": Done(), "running_seconds": 0.0, "load_seconds": 0.0}
        peaks = {"previous_peak": self.peak, "peak": 0}
        return self.model_copy(update={"committed_at": now, "looked_at": now, **window, **peaks})

    def level(self, waterlevel: int) -> "Telemetry":
        """The waterlevel after a dispatch: the most that rollout could have to do."""
        return self if waterlevel <= self.peak else self.model_copy(update={"peak": waterlevel})

    def looked(self, now: float, running: int, capacity: int) -> "Telemetry":
        """From now on so many executions run on so many slots."""
        passed = max(0.0, now - self.looked_at) if self.looked_at is not None else 0.0
        served = min(self.running, self.capacity)
        update = {
            "looked_at": now,
            "running": running,
            "capacity": capacity,
            "running_seconds": self.running_seconds + passed * served,
            "load_seconds": self.load_seconds + passed * served * (served / self.capacity if self.capacity else 1.0),
        }
        return self.model_copy(update=update)

    def closed(self, execution: ExecutionClosed) -> "Telemetry":
        """An execution has ended; one that never ran says nothing."""
        update: dict[str, Done] = {}
        if execution.harness_seconds > 0:
            update["executions"] = self.executions.with_one(execution.harness_seconds)
        if execution.evaluator_seconds > 0:
            update["evaluations"] = self.evaluations.with_one(execution.evaluator_seconds)
        return self.model_copy(update=update) if update else self

    def committed(self, now: float, groups: int, cell_seconds: float) -> "Telemetry":
        """An update: the window of every component closes."""
        load = self.load_seconds / self.running_seconds if self.running_seconds > 0 else 1.0
        nothing = Measurement(items=0, busy_seconds=0, load=0) if self._nothing_ran() else None
        measured = {
            Component.TRAINING: Measurement(items=groups, busy_seconds=cell_seconds, load=1.0),
            Component.ROLLOUT: self._measured(self.executions, load) or nothing,
            Component.HARNESS: self._measured(self.executions, 1.0) or nothing,
            Component.EVALUATOR: self._measured(self.evaluations, 1.0) or nothing,
        }
        windows = {
            name: (*self.windows.get(name, ()), window) for name, window in measured.items() if window is not None
        }
        update = {
            "windows": {**self.windows, **windows},
            "executions": Done(),
            "evaluations": Done(),
            "running_seconds": 0.0,
            "load_seconds": 0.0,
            "committed_at": now,
            "iteration_seconds": now - self.committed_at if self.committed_at is not None else None,
        }
        return self.model_copy(update=update)

    def _nothing_ran(self) -> bool:
        """No execution since the last update: there was nothing to do, and that is known."""
        seen = self.looked_at is not None
        return seen and not (self.executions.items or self.running_seconds or self.running)

    @staticmethod
    def _measured(done: Done, load: float) -> Measurement | None:
        return Measurement(items=done.items, busy_seconds=done.seconds, load=min(1.0, load)) if done.items else None

    def taken(self) -> "Telemetry":
        """The policy has seen the windows; a measurement is learned from once."""
        return self if not self.windows else self.model_copy(update={"windows": {}})

    def migrated(self, direction: Direction, seconds: float) -> "Telemetry":
        """A role change took so long."""
        cost = cost_with(self.costs.get(direction, MoveCost()), max(0.0, seconds))
        return self.model_copy(update={"costs": {**self.costs, direction: cost}})

    def sampled(self, sample: PipelineSample, in_use: SlotsInUse | None) -> "Telemetry":
        return self.model_copy(update={"sample": sample, "in_use": in_use})

    def expected_from(self, now: float | None) -> "Telemetry":
        """Samples are expected from `now` on, or (None) are not expected."""
        if (now is None) == (self.since is None):
            return self
        return self.model_copy(update={"since": now, "sample": None, "in_use": None})

    # --- what follows

    def age_seconds(self, now: float) -> float:
        """How old the newest sample is; 0 while none is expected."""
        if self.since is None:
            return 0.0
        return max(0.0, now - max(self.since, self.sample.at if self.sample is not None else self.since))

    def migration_seconds(self, direction: Direction) -> float:
        cost = self.costs.get(direction)
        return cost.mean_seconds if cost is not None else GUESS_SECONDS[direction]

    def components(
        self,
        cells: tuple[CellView, ...],
        *,
        running: int,
        groups: int,
        executions_per_group: int,
        harness_slots: int,
        evaluator_slots: int,
    ) -> tuple[ComponentView, ...]:
        """The pipeline now, with the windows not yet taken; processor slots where both kinds are limited."""
        serving = [cell for cell in cells if cell.role is CellRole.ROLLOUT]
        training = [cell.index for cell in cells if cell.role is CellRole.TRAINING]
        capacity = sum(cell.slots for cell in serving)
        load = min(1.0, running / capacity) if capacity else 0.0
        busy = self.sample.training if self.sample is not None else {}
        # A cell of which nothing is known yet counts as busy: idleness has to be seen.
        loads = {
            Component.ROLLOUT: [load] * len(serving),
            Component.TRAINING: [busy.get(cell, 1.0) for cell in training],
        }
        if harness_slots and evaluator_slots and self.in_use is not None:
            loads[Component.HARNESS] = busy_slots(self.in_use.harness, harness_slots)
            loads[Component.EVALUATOR] = busy_slots(self.in_use.evaluator, evaluator_slots)
        return component_views(
            loads,
            self.windows,
            slots_per_cell=sum(cell.slots for cell in cells) / max(1, len(cells)),
            peak=max(self.peak, self.previous_peak),
            groups=groups,
            executions_per_group=executions_per_group,
            to_rollout_seconds=self.migration_seconds(Direction.TO_ROLLOUT),
            to_training_seconds=self.migration_seconds(Direction.TO_TRAINING),
        )
