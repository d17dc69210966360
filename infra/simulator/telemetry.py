"""What is measured of a simulated pipeline, with noise where the scenario asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infra.simulator.scenario import Phase, Scenario
from workflows.messages.fleet import CellRole
from workflows.policy.component import Component, ComponentView, Measurement
from workflows.policy.pipeline import busy_slots, component_views

if TYPE_CHECKING:
    from infra.simulator.run import Simulation


class Gauge:
    """Windows close at every update: one iteration is one measurement of every component."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rng = np.random.default_rng([scenario.seed, 77])
        self._phases = sorted(scenario.phases, key=lambda phase: phase.from_step)
        self._executions: list[float] = []
        self._evaluations: list[float] = []
        self._windows: dict[Component, list[Measurement]] = {name: [] for name in Component}
        self._peak = 0

    def phase(self, step: int) -> Phase:
        """The phase that `step` falls into."""
        found = Phase(from_step=0) if not self._phases else None
        for phase in self._phases:
            if phase.from_step <= step:
                found = phase
        return found or Phase(from_step=0)

    def dispatched(self, waterlevel: int) -> None:
        """A burst has dispatched and `waterlevel` executions are there: the most that rollout could have to do, until
        the next one dispatches. Its later steps work off what this one brought, so an update does not end it."""
        self._peak = waterlevel

    def execution_done(self, seconds: float) -> None:
        self._executions.append(seconds)

    def evaluation_done(self, seconds: float) -> None:
        self._evaluations.append(seconds)

    def batch_done(self, groups: int, seconds: float, running: int) -> None:
        """A batch took `seconds` of cell time; closes the window of every component. While executions run, a component
        that has finished none has no window; when none does and none has ended, there was nothing to do."""
        self._close(Component.TRAINING, groups, seconds)
        for name, done in (
            (Component.ROLLOUT, self._executions),
            (Component.HARNESS, self._executions),
            (Component.EVALUATOR, self._evaluations),
        ):
            if done:
                self._close(name, len(done), sum(done))
            elif not running and not self._executions:
                self._windows[name].append(Measurement(items=0, busy_seconds=0, load=0))
        self._executions, self._evaluations = [], []

    def _close(self, name: Component, items: int, seconds: float) -> None:
        self._windows[name].append(Measurement(items=items, busy_seconds=self._noisy(seconds), load=1.0))

    def components(self, simulation: Simulation) -> tuple[ComponentView, ...]:
        """The components now, with the windows not yet taken; processor slots where both kinds are limited."""
        told, moves = self._scenario, self._scenario.transitions
        engines = [cell.engine for cell in simulation.cells if cell.role is CellRole.ROLLOUT]
        loads = {
            Component.ROLLOUT: [engine.count / engine.slots for engine in engines],
            Component.TRAINING: [float(busy) for busy in simulation.trainer.cells.values()],
        }
        if told.engines.harness_slots and told.engines.evaluator_slots:
            loads[Component.HARNESS] = busy_slots(simulation.in_harness, simulation.harness_slots)
            loads[Component.EVALUATOR] = busy_slots(len(simulation.scoring), simulation.evaluator_slots)
        return component_views(
            {name: [min(1.0, self._noisy(load)) for load in units] for name, units in loads.items()},
            self._windows,
            slots_per_cell=told.engines.slots / len(simulation.cells),
            peak=self._peak,
            groups=told.groups_per_step,
            executions_per_group=told.executions_per_group,
            to_rollout_seconds=moves.to_rollout_seconds,
            to_training_seconds=moves.to_training_seconds,
        )

    def taken(self) -> None:
        """The policy has seen the windows; a measurement is learned from once."""
        for windows in self._windows.values():
            windows.clear()

    def _noisy(self, value: float) -> float:
        noise = self._scenario.telemetry.noise
        return value * float(np.exp(noise * self._rng.standard_normal())) if noise else value
