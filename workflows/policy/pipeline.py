"""The pipeline's components with what was measured of them: one view, whether cells are real or simulated."""

from collections.abc import Mapping, Sequence

from workflows.policy.component import Component, ComponentView, Measurement
from workflows.policy.worker_groups import WORKER_GROUPS

SLOT_SECONDS = 1.0
"""What a processor slot takes to be given to the other side: its work in hand is finished first."""


def busy_slots(busy: int, slots: int) -> list[float]:
    """The load of each slot: the first `busy` ones are at work."""
    return [1.0] * min(busy, slots) + [0.0] * max(0, slots - busy)


def component_views(
    loads: Mapping[Component, Sequence[float]],
    windows: Mapping[Component, Sequence[Measurement]],
    *,
    slots_per_cell: float,
    peak: int,
    groups: int,
    executions_per_group: int,
    to_rollout_seconds: float,
    to_training_seconds: float,
) -> tuple[ComponentView, ...]:
    """A view of every component of `loads`, the load (0..1) of each of its units, in that order.

    `peak`: the most executions there were to work on at once; `groups`: those of one iteration. A role change is paid
    by halves: a cell's donor and its receiver each count one.
    """
    executions = float(max(peak, 1)), groups * executions_per_group
    of_cells = {
        Component.ROLLOUT: (max(slots_per_cell, 1e-9), *executions, to_rollout_seconds / 2),
        Component.TRAINING: (1.0, float(groups), groups, to_training_seconds / 2),
    }
    views: list[ComponentView] = []
    for name, units in loads.items():
        slots, most, items, seconds = of_cells.get(name, (1.0, *executions, SLOT_SECONDS))
        views.append(
            ComponentView(
                name=name,
                resource=WORKER_GROUPS[name].resource,
                units=len(units),
                slots_per_unit=slots,
                peak_items=most,
                items_per_iteration=items,
                utilisations=tuple(units),
                recent=tuple(windows.get(name, ())),
                strategies={WORKER_GROUPS[name].strategy: seconds},
            )
        )
    return tuple(views)
