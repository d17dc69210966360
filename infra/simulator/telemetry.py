"""What is measured of a simulated pipeline, with noise where the scenario asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infra.simulator.scenario import Phase, Scenario
from workflows.messages.fleet import CellRole
from workflows.policy.component import CELLS, SLOTS, Component, ComponentView, Measurement, Strategy

if TYPE_CHECKING:
    from infra.simulator.run import Simulation

SLOT_SECONDS = 1.0
"""What a processor slot takes to stop or to start."""


def busy_slots(busy: int, slots: int) -> list[float]:
    """The load of each slot: the first `busy` ones are at work."""
    return [1.0] * min(busy, slots) + [0.0] * max(0, slots - busy)


class Gauge:
    """Windows close at every update: one iteration is one measurement of every component."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rng = np.random.default_rng([scenario.seed, 77])
        self._phases = sorted(scenario.phases, key=lambda phase: phase.from_step)
        self._executions: list[float] = []
        self._evaluations: list[float] = []
        self._windows: dict[Component, list[Measurement]] = {name: [] for name in Component}
        self._peak = self._previous_peak = 0

    def phase(self, step: int) -> Phase:
        """The phase that `step` falls into."""
        found = Phase(from_step=0) if not self._phases else None
        for phase in self._phases:
            if phase.from_step <= step:
                found = phase
        return found or Phase(from_step=0)

    def level(self, waterlevel: int) -> None:
        """The waterlevel right after a dispatch: the most that rollout could have to do."""
        self._peak = max(self._peak, waterlevel)

    def execution_done(self, seconds: float) -> None:
        self._executions.append(seconds)

    def evaluation_done(self, seconds: float) -> None:
        self._evaluations.append(seconds)

    def batch_done(self, groups: int, seconds: float) -> None:
        """A batch took `seconds` of cell time; closes the window of every component."""
        self._close(Component.TRAINING, groups, seconds)
        for name, done in (
            (Component.ROLLOUT, self._executions),
            (Component.HARNESS, self._executions),
            (Component.EVALUATOR, self._evaluations),
        ):
            if done:
                self._close(name, len(done), sum(done))
        self._executions, self._evaluations = [], []
        self._previous_peak, self._peak = self._peak, 0

    def _close(self, name: Component, items: int, seconds: float) -> None:
        self._windows[name].append(Measurement(items=items, busy_seconds=self._noisy(seconds), load=1.0))

    def components(self, simulation: Simulation) -> tuple[ComponentView, ...]:
        """The components now, with the windows not yet taken; processor slots where both kinds are limited."""
        told, moves = self._scenario, self._scenario.transitions
        engines = [cell.engine for cell in simulation.cells if cell.role is CellRole.ROLLOUT]
        serving = [engine.count / engine.slots for engine in engines]
        training = [float(busy) for busy in simulation.trainer.cells.values()]
        slots = told.engines.slots / len(simulation.cells)
        groups = told.groups_per_step
        executions = groups * told.executions_per_group
        peak = float(max(self._peak, self._previous_peak, 1))
        back, forth = moves.to_rollout_seconds / 2, moves.to_training_seconds / 2
        views = [
            self._view(Component.ROLLOUT, CELLS, serving, slots, peak, executions, back),
            self._view(Component.TRAINING, CELLS, training, 1.0, groups, groups, forth),
        ]
        if told.engines.harness_slots and told.engines.evaluator_slots:
            harness = busy_slots(simulation.in_harness, simulation.harness_slots)
            evaluator = busy_slots(len(simulation.scoring), simulation.evaluator_slots)
            views += [
                self._view(Component.HARNESS, SLOTS, harness, 1.0, peak, executions, SLOT_SECONDS),
                self._view(Component.EVALUATOR, SLOTS, evaluator, 1.0, peak, executions, SLOT_SECONDS),
            ]
        return tuple(views)

    def _view(
        self,
        name: Component,
        resource: str,
        loads: list[float],
        slots_per_unit: float,
        peak: float,
        items: float,
        move_seconds: float,
    ) -> ComponentView:
        return ComponentView(
            name=name,
            resource=resource,
            units=len(loads),
            slots_per_unit=slots_per_unit,
            peak_items=peak,
            items_per_iteration=items,
            utilisations=tuple(min(1.0, self._noisy(load)) for load in loads),
            recent=tuple(self._windows[name]),
            strategies={Strategy.SUSPEND: move_seconds},
        )

    def taken(self) -> None:
        """The policy has seen the windows; a measurement is learned from once."""
        for windows in self._windows.values():
            windows.clear()

    def _noisy(self, value: float) -> float:
        noise = self._scenario.telemetry.noise
        return value * float(np.exp(noise * self._rng.standard_normal())) if noise else value
