"""What the Scheduler measures: windows close at updates, loads and costs are means of what was seen."""

import pytest

from workflows.books import SchedulerState
from workflows.messages.control import PipelineSample, SlotsInUse
from workflows.messages.execution import EndReason, ExecutionClosed, Outcome
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.calibration import Calibration, recalibrated
from workflows.policy.component import Component, ComponentView, Measurement, Strategy
from workflows.policy.state import CellView
from workflows.telemetry import GUESS_SECONDS, Telemetry, with_load

CELLS = (
    CellView(index=0, role=CellRole.TRAINING, slots=4),
    CellView(index=1, role=CellRole.TRAINING, slots=4),
    CellView(index=2, role=CellRole.ROLLOUT, slots=4, serving=True),
)


def closed(seconds: float, evaluator: float = 0.0) -> ExecutionClosed:
    return ExecutionClosed(
        execution="r/execution/b/0/0",
        burst="b",
        group=0,
        member=0,
        end=EndReason.SUBMITTED,
        outcome=Outcome.SCORED,
        harness_seconds=seconds,
        evaluator_seconds=evaluator,
    )


def components(telemetry: Telemetry, **slots: int) -> dict[Component, ComponentView]:
    shares = {"harness_slots": 0, "evaluator_slots": 0, **slots}
    found = telemetry.components(CELLS, running=3, groups=2, executions_per_group=5, **shares)
    return {view.name: view for view in found}


def test_an_update_closes_the_window_of_every_component() -> None:
    telemetry = Telemetry().level(10).looked(100.0, 0, 8)
    telemetry = telemetry.looked(102.0, 8, 8).looked(106.0, 2, 8)
    telemetry = telemetry.closed(closed(3.0, 0.5)).closed(closed(5.0, 0.5)).closed(closed(0.0))
    telemetry = telemetry.looked(110.0, 0, 8).committed(110.0, 2, 12.5)
    views = components(telemetry)
    assert views[Component.TRAINING].recent == (Measurement(items=2, busy_seconds=12.5, load=1.0),)
    rollout = views[Component.ROLLOUT].recent[0]
    assert (rollout.items, rollout.busy_seconds) == (2, 8.0)
    assert rollout.load == pytest.approx((4 * 8 * 1.0 + 4 * 2 * 0.25) / (4 * 8 + 4 * 2))
    assert telemetry.windows[Component.EVALUATOR] == (Measurement(items=2, busy_seconds=1.0, load=1.0),)
    assert telemetry.iteration_seconds is None
    assert telemetry.committed(117.0, 2, 1.0).iteration_seconds == 7.0
    assert telemetry.began(114.0).committed(117.0, 2, 1.0).iteration_seconds == 3.0
    assert telemetry.taken().windows == {}
    assert telemetry.executions.items == 0


def test_what_ended_and_ran_before_a_burst_is_not_of_its_first_window() -> None:
    """An evaluation burst came before, half its slots busy; then one execution runs on one of eight slots."""
    before = Telemetry().looked(0.0, 4, 8).closed(closed(90.0, 30.0)).closed(closed(90.0))
    telemetry = before.began(100.0).looked(100.0, 1, 8).closed(closed(6.0)).looked(110.0, 0, 8).committed(110.0, 2, 4.0)
    assert telemetry.windows[Component.ROLLOUT] == (Measurement(items=1, busy_seconds=6.0, load=1 / 8),)
    assert Component.EVALUATOR not in telemetry.windows
    assert telemetry.iteration_seconds == 10.0


def test_the_load_is_what_executions_met_not_what_engines_had_between_them() -> None:
    """Training-bound: eight executions fill eight slots for two seconds, then training takes forty-eight.

    Averaged over time the load would be 0.04; noise alone, fitted as a slope and extended to full engines, would then
    make rollout as slow as training, and no cell would be given.
    """
    telemetry, model = Telemetry().level(8), Calibration()
    for round_, seconds in enumerate((2.0, 2.9, 1.6, 2.4, 1.8)):
        start = 50.0 * round_
        telemetry = telemetry.looked(start, 8, 8)
        for _ in range(8):
            telemetry = telemetry.closed(closed(seconds))
        telemetry = telemetry.looked(start + seconds, 0, 8).looked(start + 50, 0, 8).committed(start + 50, 2, 48.0)
        (window,) = telemetry.windows[Component.ROLLOUT]
        assert window.load == pytest.approx(1.0)
        rollout = components(telemetry)[Component.ROLLOUT].model_copy(update={"items_per_iteration": 8.0})
        model, telemetry = recalibrated(model, rollout), telemetry.taken()
    assert model.iteration_seconds(rollout, 2) == pytest.approx(2.1, abs=0.3)  # on eight slots
    assert Telemetry().looked(0.0, 8, 0).looked(5.0, 0, 8).load_seconds == 0.0  # without a slot nothing runs


def test_telemetry_of_a_scheduler_of_format_1_is_read() -> None:
    """It had the integral of all slots; with executions spread evenly the load is what ran over what there was."""
    telemetry = {"running": 4, "running_seconds": 40.0, "slot_seconds": 80.0}
    state = with_load({"format": 1, "telemetry": telemetry, "entries": 7})
    assert state == {**state, "format": 1, "entries": 7}
    found = Telemetry.model_validate(state["telemetry"])
    assert (found.running, found.running_seconds, found.load_seconds) == (4, 40.0, 20.0)
    assert with_load({})["telemetry"] == {"load_seconds": 0.0}
    assert SchedulerState.newest() == 2


def test_a_window_in_which_nothing_ended_is_left_out() -> None:
    telemetry = Telemetry().committed(10.0, 2, 4.0)
    assert list(telemetry.windows) == [Component.TRAINING]
    still_runs = Telemetry().looked(0.0, 3, 8).looked(10.0, 3, 8).committed(10.0, 2, 4.0)
    assert list(still_runs.windows) == [Component.TRAINING]
    went_unheard = Telemetry().looked(0.0, 3, 8).looked(10.0, 0, 8).committed(10.0, 2, 4.0)
    assert list(went_unheard.windows) == [Component.TRAINING]


def test_a_window_in_which_nothing_ran_says_that_there_was_nothing_to_do() -> None:
    """The second step of a burst whose executions all ended during the first."""
    telemetry = Telemetry().looked(0.0, 1, 8).closed(closed(9.0)).looked(9.0, 0, 8).committed(10.0, 2, 4.0).taken()
    telemetry = telemetry.looked(15.0, 0, 8).committed(20.0, 2, 4.0)
    assert telemetry.windows[Component.ROLLOUT] == (Measurement(items=0, busy_seconds=0, load=0),)


def test_what_a_burst_began_with_counts_until_the_next_one_begins() -> None:
    telemetry = Telemetry().level(40).began(0.0)
    for step in range(1, 5):
        telemetry = telemetry.committed(10.0 * step, 2, 4.0)
        assert components(telemetry)[Component.ROLLOUT].peak_items == 40.0
    next_burst = telemetry.level(30).began(50.0)
    assert components(next_burst)[Component.ROLLOUT].peak_items == 30.0
    refilled = next_burst.level(12).committed(60.0, 2, 4.0)
    assert components(refilled)[Component.ROLLOUT].peak_items == 30.0


def test_components_are_what_is_there_now() -> None:
    telemetry = Telemetry().level(7).sampled(PipelineSample(at=1.0, training={0: 0.25}), None)
    views = components(telemetry)
    assert set(views) == {Component.ROLLOUT, Component.TRAINING}
    assert views[Component.ROLLOUT].utilisations == (0.75,)
    assert views[Component.TRAINING].utilisations == (0.25, 1.0), "of cell 1 nothing is known: it counts as busy"
    assert (views[Component.ROLLOUT].peak_items, views[Component.ROLLOUT].items_per_iteration) == (7.0, 10.0)
    assert (views[Component.TRAINING].peak_items, views[Component.TRAINING].items_per_iteration) == (2.0, 2.0)


def test_processor_slots_count_where_both_kinds_are_limited_and_seen() -> None:
    seen = Telemetry().sampled(PipelineSample(at=1.0), SlotsInUse(harness=2, evaluator=1))
    assert set(components(seen, harness_slots=2)) == {Component.ROLLOUT, Component.TRAINING}
    views = components(seen, harness_slots=2, evaluator_slots=3)
    assert views[Component.HARNESS].utilisations == (1.0, 1.0)
    assert views[Component.EVALUATOR].utilisations == (1.0, 0.0, 0.0)
    assert set(views[Component.HARNESS].strategies) == {Strategy.RESIZE}


def test_role_changes_cost_what_was_measured_newer_ones_more() -> None:
    telemetry = Telemetry()
    assert telemetry.migration_seconds(Direction.TO_TRAINING) == GUESS_SECONDS[Direction.TO_TRAINING]
    telemetry = telemetry.migrated(Direction.TO_TRAINING, 4.0)
    assert telemetry.migration_seconds(Direction.TO_TRAINING) == pytest.approx(4.0)
    telemetry = telemetry.migrated(Direction.TO_TRAINING, 8.0)
    assert 6.0 < telemetry.migration_seconds(Direction.TO_TRAINING) < 8.0
    assert telemetry.costs[Direction.TO_TRAINING].count == 2
    assert sum(next(iter(components(telemetry)[name].strategies.values())) for name in components(telemetry)) > 0


def test_telemetry_is_as_old_as_its_newest_sample() -> None:
    telemetry = Telemetry()
    assert telemetry.age_seconds(50.0) == 0.0
    telemetry = telemetry.expected_from(100.0)
    assert telemetry.expected_from(200.0).since == 100.0
    assert telemetry.age_seconds(130.0) == 30.0
    assert telemetry.sampled(PipelineSample(at=125.0), None).age_seconds(130.0) == 5.0
    assert telemetry.expected_from(None).age_seconds(500.0) == 0.0
