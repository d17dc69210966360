"""The throughput policy: calibration, donors, plans, and what it refuses."""

from typing import Any

import pytest

from tests.workflows.policy.states import cell, state
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.calibration import Calibration, recalibrated
from workflows.policy.component import CELLS, SLOTS, Component, ComponentView, Measurement, Strategy, Verb
from workflows.policy.memory import Memory
from workflows.policy.state import Decision, PolicyState, Reason, Verdict
from workflows.policy.throughput import best_plan, decide

ROLLOUT, TRAINING = Component.ROLLOUT, Component.TRAINING
HARNESS, EVALUATOR = Component.HARNESS, Component.EVALUATOR


def view(name: Component, units: int, *, seconds: float, items: float, load: float, **more: Any) -> ComponentView:
    """A component that was measured three times at `seconds` a item; all its units are at `load`."""
    window = Measurement(items=10, busy_seconds=10 * seconds, load=1.0)
    values: dict[str, Any] = {
        "name": name,
        "units": units,
        "slots_per_unit": 1,
        "peak_items": 1000,
        "items_per_iteration": items,
        "utilisations": (load,) * units,
        "recent": (window,) * 3,
        "strategies": {Strategy.SUSPEND: 1.0},
    }
    return ComponentView(**(values | more))


def seen(*components: ComponentView, trains: int = 2, now: float = 100.0, **more: Any) -> PolicyState:
    """Eight cells, the first `trains` of them in training."""
    roles = [CellRole.TRAINING if index < trains else CellRole.ROLLOUT for index in range(8)]
    cells = [cell(index, role) for index, role in enumerate(roles)]
    return state(*cells, now=now, components=components, **more)


def pipeline(rollout_load: float, training_load: float, *, training_seconds: float = 30.0) -> list[ComponentView]:
    return [
        view(ROLLOUT, 6, seconds=10, items=60, load=rollout_load),
        view(TRAINING, 2, seconds=training_seconds, items=20, load=training_load),
    ]


def after_low(first: PolicyState, **changes: Any) -> Decision:
    """The decision once everything has been as it is for long enough."""
    _, memory = decide(first, Memory())
    later = {"now": first.now + first.throughput.low_seconds, **changes}
    quiet = tuple(component.model_copy(update={"recent": ()}) for component in first.components)
    return decide(first.model_copy(update={"components": quiet, **later}), memory)[0]


def test_gives_units_to_the_bottleneck_until_another_one_would_be_it() -> None:
    """Rollout needs 100 s, training 300 s. With 4 units each, 150 s: any other cut is slower."""
    decision = after_low(seen(*pipeline(0.05, 1.0)))
    assert (decision.verdict, decision.reason) == (Verdict.MOVE, Reason.GAIN)
    assert decision.movers == (2, 3)
    assert decision.direction is Direction.TO_TRAINING
    assert decision.plan is not None
    assert (decision.plan.seconds_before, decision.plan.seconds_after) == pytest.approx((300.0, 150.0))
    assert (decision.bottleneck, decision.expected_gain_seconds) == ("training", pytest.approx(150.0))


def test_training_gives_back_from_the_highest_index_and_keeps_the_core() -> None:
    parts = [view(ROLLOUT, 4, seconds=100, items=60, load=1.0), view(TRAINING, 4, seconds=1, items=20, load=0.0)]
    decision = after_low(seen(*parts, trains=4))
    assert decision.direction is Direction.TO_ROLLOUT
    assert decision.movers == (3, 2, 1)


def test_donor_must_be_idle_without_a_break() -> None:
    first = seen(*pipeline(0.05, 1.0))
    _, memory = decide(first, Memory())
    half = first.model_copy(update={"now": 102.5})
    decision, _ = decide(half, memory)
    assert (decision.reason, decision.recheck_seconds) == (Reason.NO_DONOR, 2.5)
    busy = seen(*pipeline(0.9, 1.0), now=103.0)
    decision, memory = decide(busy, memory)
    assert decision.reason is Reason.NO_DONOR
    assert memory.low_since == {}
    _, memory = decide(seen(*pipeline(0.05, 1.0), now=104.0), memory)
    assert memory.low_since == {ROLLOUT: 104.0}


@pytest.mark.parametrize(("idle", "donates"), [(4, False), (5, True)])
def test_more_than_four_fifths_of_the_units_have_to_be_idle(idle: int, donates: bool) -> None:
    rollout, training = pipeline(0.05, 1.0)
    mixed = rollout.model_copy(update={"utilisations": (0.05,) * idle + (0.9,) * (6 - idle)})
    decision = after_low(seen(mixed, training))
    assert (decision.reason is Reason.GAIN) == donates


def test_idle_component_is_left_alone_when_nobody_else_gains() -> None:
    """Training waits, but rollout is quicker than it: giving rollout more changes nothing."""
    parts = [view(ROLLOUT, 6, seconds=1, items=6, load=0.9), view(TRAINING, 2, seconds=30, items=20, load=0.1)]
    decision = after_low(seen(*parts))
    assert (decision.verdict, decision.reason) == (Verdict.REFUSE, Reason.NO_GAIN)
    assert decision.plan is not None
    assert decision.plan.gain_seconds <= 0


def test_gain_has_to_pay_the_migration() -> None:
    rollout, training = pipeline(0.05, 1.0)
    dear = {"strategies": {Strategy.REBOOT: 100.0}}
    parts = (rollout.model_copy(update=dear), training.model_copy(update=dear))
    assert after_low(seen(*parts)).reason is Reason.NO_GAIN
    longer = seen(*parts)
    longer = longer.model_copy(update={"throughput": longer.throughput.model_copy(update={"horizon_iterations": 10})})
    assert after_low(longer).reason is Reason.GAIN


def test_noisy_measurements_ask_for_a_larger_gain() -> None:
    """The same means, once measured evenly and once wildly: what is not sure is not done."""
    even = [Measurement(items=10, busy_seconds=10 * seconds, load=1.0) for seconds in (15, 15, 15, 15)]
    wild = [Measurement(items=10, busy_seconds=10 * seconds, load=1.0) for seconds in (15, 9, 22, 14)]
    rollout, training = pipeline(0.05, 1.0)
    for windows, reason in ((even, Reason.GAIN), (wild, Reason.NO_GAIN)):
        parts = (rollout, training.model_copy(update={"recent": tuple(windows)}))
        assert after_low(seen(*parts)).reason is reason


def test_after_a_move_two_new_measurements_are_waited_for() -> None:
    first = seen(*pipeline(0.05, 1.0))
    _, memory = decide(first, Memory())
    moved, memory = decide(
        first.model_copy(
            update={"now": 105.0, "components": tuple(v.model_copy(update={"recent": ()}) for v in first.components)}
        ),
        memory,
    )
    assert moved.verdict is Verdict.MOVE
    decision, memory = decide(first.model_copy(update={"now": 106.0}), memory)
    assert (decision.reason, decision.recheck_seconds) == (Reason.SETTLING, 59.0)
    one = tuple(v.model_copy(update={"recent": v.recent[:1]}) for v in first.components)
    again = first.model_copy(update={"now": 166.0, "components": one})
    fresh = memory.model_copy(
        update={"calibrations": {name: c.model_copy(update={"fresh": 0}) for name, c in memory.calibrations.items()}}
    )
    decision, fresh = decide(again, fresh)
    assert decision.reason is Reason.SETTLING
    assert decide(again, fresh)[0].reason is not Reason.SETTLING


def test_core_trains_first_whatever_is_measured() -> None:
    decision, _ = decide(seen(trains=0), Memory())
    assert (decision.movers, decision.reason) == ((0,), Reason.BOUNDS)


def test_processor_slots_move_among_themselves_only_and_are_created_first() -> None:
    parts = [
        *pipeline(1.0, 1.0),
        view(HARNESS, 16, seconds=1, items=60, load=0.0, resource=SLOTS, strategies={Strategy.RESIZE: 1.0}),
        view(EVALUATOR, 2, seconds=20, items=60, load=1.0, resource=SLOTS, strategies={Strategy.RESIZE: 0.5}),
    ]
    decision = after_low(seen(*parts))
    assert (decision.verdict, decision.cell) == (Verdict.MOVE, None)
    assert decision.plan is not None
    assert (decision.plan.donor, decision.plan.receiver) == (HARNESS, EVALUATOR)
    steps = [(action.component, action.verb) for action in decision.plan.actions]
    assert steps == [(EVALUATOR, Verb.RESIZE), (HARNESS, Verb.RESIZE)]
    assert decision.detail.endswith("; by evaluator resize, harness resize")
    assert decision.movers == ()


def test_cells_are_suspended_before_they_resume_in_the_other_role() -> None:
    decision = after_low(seen(*pipeline(0.05, 1.0)))
    assert decision.plan is not None
    steps = [(action.component, action.verb) for action in decision.plan.actions]
    assert steps == [(ROLLOUT, "suspend"), (TRAINING, "resume")]
    assert all(component.resource == CELLS for component in pipeline(0.05, 1.0))


def test_best_plan_is_the_best_of_all_by_brute_force() -> None:
    parts = pipeline(0.05, 1.0, training_seconds=47.0)
    looked = seen(*parts)
    _, memory = decide(looked, Memory())
    plan = best_plan(looked, memory, [parts[0]])
    rollout, training = (memory.calibrations[name] for name in (ROLLOUT, TRAINING))
    times = {
        units: max(rollout.iteration_seconds(parts[0], 6 - units), training.iteration_seconds(parts[1], 2 + units))
        for units in range(1, 6)
    }
    assert plan is not None
    assert plan.units == min(times, key=lambda units: times[units])


def test_calibration_finds_base_and_slope() -> None:
    model = Calibration()
    for load in (0.2, 0.5, 0.9, 0.4, 0.7):
        model = model.after(Measurement(items=5, busy_seconds=5 * (10 + 6 * load), load=load))
    assert model.base == pytest.approx(10)
    assert model.slope == pytest.approx(6)
    assert model.uncertainty < 0.1


def test_calibration_forgets_another_workload_at_once() -> None:
    model = Calibration()
    for _ in range(5):
        model = model.after(Measurement(items=1, busy_seconds=1000, load=1))
    changed = model.after(Measurement(items=1, busy_seconds=100, load=1))
    assert (changed.base, changed.fresh) == (100, 1)
    drifted = model.after(Measurement(items=1, busy_seconds=900, load=1))
    assert 900 < drifted.base < 1000


def test_window_without_a_finished_item_says_nothing() -> None:
    model = Calibration().after(Measurement(items=3, busy_seconds=30, load=1))
    assert model.after(Measurement(items=0, busy_seconds=500, load=1)) == model
    assert Calibration().after(Measurement(items=0, busy_seconds=0, load=0)).uncertainty == 1.0


def executions(items: int, seconds: float) -> Measurement:
    return Measurement(items=items, busy_seconds=items * seconds, load=1.0)


def test_a_window_counts_by_its_items() -> None:
    """A burst of three steps: most executions end during the first, stragglers in the others. It is their mean."""
    rollout = view(ROLLOUT, 6, seconds=0, items=20, load=0.5, recent=(executions(57, 100), executions(2, 190)))
    model = recalibrated(None, rollout)
    assert 100 < model.base < 105
    assert model.uncertainty < 0.2
    evenly = Calibration().after(executions(57, 100)).after(executions(2, 190))
    assert evenly.base > 140, "what it would be if windows counted alike"


def test_one_execution_that_takes_long_is_no_other_workload() -> None:
    rollout = view(ROLLOUT, 6, seconds=0, items=20, load=0.5, recent=(executions(60, 100), executions(1, 300)))
    model = recalibrated(None, rollout)
    assert model.fresh == 2
    assert model.base < 110
    whole = rollout.model_copy(update={"recent": (executions(60, 100), executions(20, 300))})
    changed = recalibrated(None, whole)
    assert (changed.fresh, changed.base) == (1, pytest.approx(300))
    few = rollout.model_copy(update={"recent": (executions(60, 100), executions(5, 3000))})
    assert recalibrated(None, few).fresh == 1, "a quarter of an iteration's, but thirty times as slow"


def test_a_window_without_work_is_a_look_at_what_is_known() -> None:
    idle = Measurement(items=0, busy_seconds=0, load=0)
    known = Calibration().after(executions(10, 30))
    looked = known.after(idle, 0.0)
    assert looked == known.model_copy(update={"fresh": 2})
    assert Calibration().after(idle, 0.0) == Calibration()


def test_two_windows_without_work_let_a_starved_training_be_helped() -> None:
    """All executions of a burst ended during its first, long step: a plan need not wait for the next burst."""
    rollout, training = pipeline(0.0, 1.0)
    idle = Measurement(items=0, busy_seconds=0, load=0)
    first = rollout.model_copy(update={"recent": (executions(180, 10),)})
    again = training.model_copy(update={"recent": training.recent[:1]})
    assert after_low(seen(first, again)).reason is Reason.SETTLING
    then = first.model_copy(update={"recent": (*first.recent, idle)})
    decision = after_low(seen(then, training))
    assert (decision.reason, decision.movers) == (Reason.GAIN, (2, 3))
