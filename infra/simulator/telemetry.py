"""What is measured of a simulated pipeline, with noise where the scenario asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infra.simulator.scenario import Phase, Scenario
from workflows.messages.fleet import CellRole
from workflows.policy.component import CELLS, Component, ComponentView, Measurement, Strategy

if TYPE_CHECKING:
    from infra.simulator.run import Simulation


class Gauge:
    """Windows close at every update: one iteration is one measurement of every component."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rng = np.random.default_rng([scenario.seed, 77])
        self._phases = sorted(scenario.phases, key=lambda phase: phase.from_step)
        self._executions: list[float] = []
        self._windows: dict[Component, list[Measurement]] = {Component.ROLLOUT: [], Component.TRAINING: []}
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

    def batch_done(self, groups: int, seconds: float) -> None:
        """A batch took `seconds` of cell time; closes the window of every component."""
        training = Measurement(items=groups, busy_seconds=self._noisy(seconds), load=1.0)
        self._windows[Component.TRAINING].append(training)
        if self._executions:
            busy = self._noisy(sum(self._executions))
            window = Measurement(items=len(self._executions), busy_seconds=busy, load=1.0)
            self._windows[Component.ROLLOUT].append(window)
        self._executions = []
        self._previous_peak, self._peak = self._peak, 0

    def components(self, simulation: Simulation) -> tuple[ComponentView, ...]:
        """Rollout and training now, with the windows not yet taken."""
        told = self._scenario
        rollout = [cell for cell in simulation.cells if cell.role is CellRole.ROLLOUT]
        at_work = simulation.trainer.cells
        cost = {
            Component.ROLLOUT: told.transitions.to_rollout_seconds,
            Component.TRAINING: told.transitions.to_training_seconds,
        }
        loads = {
            Component.ROLLOUT: [min(1.0, cell.engine.count / cell.engine.slots) for cell in rollout],
            Component.TRAINING: [float(busy) for busy in at_work.values()],
        }
        slots = told.engines.slots / len(simulation.cells)
        items = told.groups_per_step * told.executions_per_group
        views = []
        for name, shares in loads.items():
            is_rollout = name is Component.ROLLOUT
            peak = max(self._peak, self._previous_peak, 1) if is_rollout else float(told.groups_per_step)
            views.append(
                ComponentView(
                    name=name,
                    resource=CELLS,
                    units=len(shares),
                    slots_per_unit=slots if is_rollout else 1.0,
                    peak_items=peak,
                    items_per_iteration=items if is_rollout else told.groups_per_step,
                    utilisations=tuple(min(1.0, self._noisy(share)) for share in shares),
                    recent=tuple(self._windows[name]),
                    strategies={Strategy.SUSPEND: cost[name] / 2},
                )
            )
        return tuple(views)

    def taken(self) -> None:
        """The policy has seen the windows; a measurement is learned from once."""
        for windows in self._windows.values():
            windows.clear()

    def _noisy(self, value: float) -> float:
        noise = self._scenario.telemetry.noise
        return value * float(np.exp(noise * self._rng.standard_normal())) if noise else value
