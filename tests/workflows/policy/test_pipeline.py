"""The views that the `throughput` policy plans with, from loads and windows."""

from typing import Any

from workflows.policy.component import CELLS, SLOTS, Component, Measurement, Strategy
from workflows.policy.pipeline import SLOT_SECONDS, busy_slots, component_views

SETTINGS: dict[str, Any] = {
    "slots_per_cell": 4.0,
    "groups": 2,
    "executions_per_group": 5,
    "to_rollout_seconds": 6.0,
    "to_training_seconds": 10.0,
}


def test_cells_and_slots_are_seen_as_what_they_are() -> None:
    window = Measurement(items=3, busy_seconds=9.0, load=1.0)
    loads = {
        Component.ROLLOUT: [0.5, 0.25],
        Component.TRAINING: [1.0],
        Component.HARNESS: busy_slots(1, 3),
        Component.EVALUATOR: busy_slots(5, 2),
    }
    rollout, training, harness, evaluator = component_views(loads, {Component.TRAINING: [window]}, peak=7, **SETTINGS)
    assert [one.resource for one in (rollout, training, harness, evaluator)] == [CELLS, CELLS, SLOTS, SLOTS]
    assert (rollout.units, rollout.slots_per_unit, rollout.peak_items, rollout.items_per_iteration) == (2, 4, 7, 10)
    assert (training.units, training.slots_per_unit, training.peak_items, training.items_per_iteration) == (1, 1, 2, 2)
    assert (harness.utilisations, evaluator.utilisations) == ((1, 0, 0), (1, 1))
    assert (rollout.recent, training.recent) == ((), (window,))
    # Either side of a role change counts its half.
    assert (rollout.strategies, training.strategies) == ({Strategy.SUSPEND: 3.0}, {Strategy.SUSPEND: 5.0})
    assert harness.strategies == evaluator.strategies == {Strategy.RESIZE: SLOT_SECONDS}


def test_without_cells_or_work_there_is_still_a_view() -> None:
    settings: dict[str, Any] = SETTINGS | {"slots_per_cell": 0.0}
    (rollout,) = component_views({Component.ROLLOUT: []}, {}, peak=0, **settings)
    assert rollout.units == 0
    assert rollout.peak_items == 1
