"""A simulated run: exact counts, determinism, staleness, the same executions for everybody, and what policies gain."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.simulator.compare import ablation, at_best_split, compare, workload_of
from infra.simulator.run import Simulation, SimulationStuck
from infra.simulator.scenario import (
    Durations,
    Engines,
    Phase,
    Scenario,
    Telemetry,
    TrainingModel,
    Transitions,
    Variant,
)
from infra.simulator.workload import Drawn, Recorded, Work
from workflows.policy.state import Bounds

BEST_SPLIT = 3
"""Training cells of `async` over both phases of `two_phases`: what searching them finds."""
POLICIES = ("waterlevel", "throughput", "async", "colocate", "lending")


def scenario(**changes: Any) -> Scenario:
    values: dict[str, Any] = {
        "cells": 4,
        "groups_per_step": 4,
        "executions_per_group": 4,
        "steps": 12,
        "staleness": 1.0,
        "durations": Durations(mean_seconds=100, query_sigma=0.3, execution_sigma=0.5),
        "engines": Engines(slots=32),
        "training": TrainingModel(step_seconds=20, update_seconds=1),
        "transitions": Transitions(to_training_seconds=1, to_rollout_seconds=1, reroute_seconds=1),
        "hold_seconds": 1.0,
    }
    return Scenario(**(values | changes))


def variant(policy: str, **changes: Any) -> Variant:
    return Variant.model_validate({"label": policy, "policy": policy} | changes)


@settings(max_examples=40)
@given(
    policy=st.sampled_from(POLICIES),
    cells=st.integers(1, 6),
    slots=st.integers(6, 40),
    groups=st.integers(1, 5),
    size=st.integers(1, 4),
    burst_steps=st.integers(1, 3),
    extra=st.sampled_from([0.0, 0.5, 1.0]),
    streaming=st.booleans(),
    shuffle=st.booleans(),
    limit=st.sampled_from([None, 120.0]),
    standalone=st.sampled_from([0, 2]),
    scoring=st.sampled_from([(0.0, None, None), (5.0, None, None), (30.0, 3, 1)]),
    seed=st.integers(0, 3),
)
def test_every_run_ends_with_exact_counts(
    policy: str,
    cells: int,
    slots: int,
    groups: int,
    size: int,
    burst_steps: int,
    extra: float,
    streaming: bool,
    shuffle: bool,
    limit: float | None,
    standalone: int,
    scoring: tuple[float, int | None, int | None],
    seed: int,
) -> None:
    told = scenario(
        cells=cells,
        seed=seed,
        steps=6,
        groups_per_step=groups,
        executions_per_group=size,
        burst_steps=burst_steps,
        staleness=(burst_steps - 1) / 2 + extra,
        durations=Durations(mean_seconds=100, query_sigma=0.3, execution_sigma=0.8, timeout_seconds=limit),
        engines=Engines(
            slots=slots,
            standalone_slots=standalone,
            evaluation_seconds=scoring[0],
            harness_slots=scoring[1],
            evaluator_slots=scoring[2],
        ),
        variants=(variant(policy, streaming=streaming, shuffle=shuffle and not streaming),),
    )
    simulation = Simulation(told, told.variants[0])
    outcome = simulation.run()
    assert len(outcome.steps) == 6
    assert 0 <= simulation.finished <= simulation.launched <= simulation.dispatched
    assert simulation.dispatched == simulation.groups * size
    trained = 6 * groups
    assert simulation.groups == trained + len(simulation.open) + len(simulation.ready)
    assert len(simulation.running) == simulation.launched - simulation.finished
    engines = [cell.engine.count for cell in (*simulation.cells, *simulation.standalone)]
    assert sum(engines) + len(simulation.homeless) == simulation.in_harness
    assert simulation.in_harness + len(simulation.to_score) + len(simulation.scoring) == len(simulation.running)
    moments = [step.committed_at for step in outcome.steps]
    assert moments == sorted(moments)
    assert all(step.staleness >= 0 for step in outcome.steps)


@pytest.mark.parametrize("policy", POLICIES)
def test_same_seed_same_outcome_other_seed_other_outcome(policy: str) -> None:
    told = scenario()
    first, again = (Simulation(told, variant(policy)).run() for _ in range(2))
    assert first == again
    other = Simulation(told.model_copy(update={"seed": 1}), variant(policy)).run()
    assert other.seconds != first.seconds


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("target", "steps"), [(1.0, 1), (1.5, 2), (1.0, 3)])
def test_measured_staleness_is_the_target(policy: str, target: float, steps: int) -> None:
    told = scenario(steps=48, staleness=target, burst_steps=steps)
    outcome = Simulation(told, variant(policy)).run()
    assert outcome.expected_staleness == target
    assert outcome.staleness == pytest.approx(target, abs=0.05)


def test_groups_are_the_same_whoever_asks_and_in_whatever_order() -> None:
    told = scenario()
    forwards, backwards = workload_of(told), workload_of(told)
    wanted = [backwards.group(index) for index in (150, 3, 70)]
    ahead = [forwards.group(index) for index in range(151)]
    assert wanted == [ahead[150], ahead[3], ahead[70]]


def test_durations_have_the_mean_that_was_asked_for() -> None:
    drawn = Drawn(Durations(mean_seconds=50, query_sigma=0.4, execution_sigma=0.6), 8, 5)
    seconds = [work.seconds for index in range(2000) for work in drawn.group(index)]
    assert sum(seconds) / len(seconds) == pytest.approx(50, rel=0.03)


def test_time_limit_ends_executions_and_they_are_counted() -> None:
    told = scenario(durations=Durations(mean_seconds=100, execution_sigma=1.0, timeout_seconds=110))
    outcome = Simulation(told, variant("waterlevel")).run()
    assert 0 < outcome.timed_out < outcome.executions
    assert outcome.mean_query_seconds <= 110 + 1e-6


def test_one_cell_degrades_to_colocate() -> None:
    told = scenario(cells=1, staleness=0.0)
    own, pool = (Simulation(told, variant(policy)).run() for policy in ("waterlevel", "colocate"))
    assert own.seconds == pytest.approx(pool.seconds, rel=0.02)


def test_fixed_split_gets_its_best_one() -> None:
    told = scenario()
    workload = workload_of(told)
    best = at_best_split(told, variant("async"), workload)
    for split in (1, 2, 3):
        assert best.outcome.seconds <= at_best_split(told, variant("async", split=split), workload).outcome.seconds


@pytest.mark.slow
def test_elastic_beats_the_baselines_on_heavy_tails() -> None:
    told = scenario(
        cells=8,
        steps=24,
        groups_per_step=8,
        executions_per_group=8,
        burst_steps=3,
        durations=Durations(mean_seconds=3600, query_sigma=0.3, execution_sigma=0.5),
        engines=Engines(slots=160, slowdown=0.0),
        training=TrainingModel(step_seconds=1200),
    )
    hours = {result.variant.policy: result.outcome.hours for result in compare(told)}
    assert min(hours, key=lambda policy: hours[policy]) == "waterlevel"
    assert hours["async"] > 1.2 * hours["waterlevel"]
    assert hours["colocate"] > 1.1 * hours["waterlevel"]


def test_streaming_helps_and_a_shuffled_burst_costs() -> None:
    told = scenario(
        steps=24, burst_steps=2, durations=Durations(mean_seconds=100), variants=(variant("async", split=1),)
    )
    hours = {result.variant.label: result.outcome.hours for result in compare(ablation(told))}
    assert hours["async, streaming"] < hours["async, no stream"] < hours["async, shuffled"]


def two_phases(order: str, noise: float, seed: int) -> Scenario:
    """Long rollouts with light training, and short ones with heavy training."""
    heavy = Phase(from_step=30, duration_scale=0.1, training_scale=8.0)
    phases = (
        (heavy,)
        if order == "rollout first"
        else (Phase(**(heavy.model_dump() | {"from_step": 0})), Phase(from_step=30))
    )
    return Scenario(
        seed=seed,
        cells=8,
        steps=60,
        durations=Durations(mean_seconds=1800, query_sigma=0.2, execution_sigma=0.3),
        engines=Engines(slots=64, slowdown=0.3),
        training=TrainingModel(step_seconds=60, update_seconds=5),
        telemetry=Telemetry(noise=noise, sample_seconds=30),
        phases=phases,
        variants=(variant("throughput"), variant("async")),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("order", "gain"), [("rollout first", 1.25), ("training first", 1.2)])
def test_throughput_beats_the_best_split_over_two_phases_with_few_moves(order: str, gain: float) -> None:
    adaptive, fixed = compare(two_phases(order, 0.0, 0))
    assert fixed.outcome.split == BEST_SPLIT
    assert fixed.outcome.seconds >= gain * adaptive.outcome.seconds
    assert _moves_by_phase(adaptive)[0] <= 2
    assert _moves_by_phase(adaptive)[1] <= 2


@pytest.mark.parametrize("order", ["rollout first", "training first"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_throughput_does_not_oscillate_with_noisy_telemetry(order: str, seed: int) -> None:
    """Everything that is measured is off by 30%: the moves stay as few, and it still pays."""
    told = two_phases(order, 0.3, seed)
    adaptive, fixed = compare(told.model_copy(update={"split": BEST_SPLIT}))
    assert max(_moves_by_phase(adaptive)) <= 2
    assert fixed.outcome.seconds >= 1.05 * adaptive.outcome.seconds


@pytest.mark.parametrize(("cells", "within"), [(4, 8), (16, 4)])
def test_throughput_helps_a_starved_core_in_bursts_of_several_steps(cells: int, within: int) -> None:
    """A burst dispatches once for its four steps: in its later ones rollout has little to do, but is not slow. One core
    of sixteen cells is so slow that all executions of a burst end during its first step."""
    told = scenario(
        cells=cells,
        burst_steps=4,
        staleness=1.5,
        durations=Durations(mean_seconds=1000, query_sigma=0.16, execution_sigma=0.34),
        engines=Engines(slots=64),
        training=TrainingModel(step_seconds=272, update_seconds=3),
    )
    simulation = Simulation(told, variant("throughput"))
    outcome = simulation.run()
    planned = [at for at, reason, _ in simulation.trace.decisions if reason == "gain"]
    assert len(planned) == 1
    assert planned[0] <= outcome.steps[within - 1].committed_at
    kept = Simulation(told, variant("async", split=1)).run()
    assert outcome.seconds < 0.9 * kept.seconds


def _moves_by_phase(result: Any) -> tuple[int, int]:
    """Planned moves before and after the workload changed."""
    change = result.outcome.steps[29].committed_at
    planned = [at for at, reason, _ in result.trace.decisions if reason == "gain"]
    return sum(at < change for at in planned), sum(at >= change for at in planned)


def test_without_streaming_cells_claim_or_have_shares() -> None:
    """Three groups on four cells: whole groups leave a cell idle, claimed micro-steps do not."""
    groups = [[Work(10.0, 0.5, 1.0)] * 4] * 3
    told = scenario(groups_per_step=3, steps=6, training=TrainingModel(step_seconds=60, micro_steps_per_group=4))
    seconds = {
        shares: Simulation(told, variant("colocate", streaming=False, shares=shares), Recorded(groups)).run().seconds
        for shares in ("fixed", "claimed")
    }
    assert seconds["claimed"] < 0.9 * seconds["fixed"]


def test_executions_start_one_after_the_other() -> None:
    told = scenario(steps=1, staleness=0.0, engines=Engines(slots=32, slowdown=0.0, launch_seconds=0.5))
    slow = Simulation(told, variant("async", split=1), Recorded([[Work(10.0, 0.5, 1.0)] * 4] * 4)).run()
    # The last of sixteen starts seven and a half seconds after the first, which itself takes half a second.
    assert slow.steps[0].last_ready_at == pytest.approx(16 * 0.5 + 10.0)


def test_recorded_executions_start_in_their_order_and_the_first_ones_when_they_did() -> None:
    """Four slots at once: the last of the file started first, the others not as evenly as they would be launched."""
    told = scenario(
        cells=2,
        groups_per_step=2,
        executions_per_group=2,
        steps=1,
        staleness=0.0,
        engines=Engines(slots=8, slowdown=0.0, launch_seconds=1.0),
    )
    starts = ((9.0, 2.0), (1.0, 0.0))
    groups = [[Work(10.0, 0.5, 1.0, started) for started in group] for group in starts]
    simulation = Simulation(told, variant("async", split=1), Recorded(groups))
    simulation._dispatch(0, 0)
    simulation._dispatch(1, 0)
    simulation._order(4)
    assert list(simulation.queue) == [(1, 1), (1, 0), (0, 1), (0, 0)]
    ready = Simulation(told, variant("async", split=1), Recorded(groups)).run().steps[0].last_ready_at
    assert ready == pytest.approx(9.0 + 10.0)


def test_an_execution_takes_a_slot_when_it_starts() -> None:
    """Sixteen are launched before three of four cells leave; on the eight slots that stay one runs at a time."""
    told = scenario(steps=1, staleness=0.0, engines=Engines(slots=32, slowdown=0.0, launch_seconds=1.0))
    groups = [[Work(0.5, 1.0, 1.0)] * 4] * 4
    outcome = Simulation(told, variant("async", split=3), Recorded(groups)).run()
    assert outcome.steps[0].last_ready_at == pytest.approx(16 * 1.0 + 0.5)
    assert outcome.executions == 16


def test_the_time_limit_counts_from_the_start() -> None:
    told = scenario(
        steps=1,
        staleness=0.0,
        engines=Engines(slots=32, slowdown=0.0, launch_seconds=1.0),
        durations=Durations(mean_seconds=10.0, timeout_seconds=5.0),
    )
    outcome = Simulation(told, variant("async", split=1), Recorded([[Work(10.0, 0.5, 1.0)] * 4] * 4)).run()
    assert outcome.timed_out == 16
    assert outcome.steps[0].last_ready_at == pytest.approx(16 * 1.0 + 5.0)


def test_recorded_groups_come_round_again() -> None:
    groups = [[Work(10.0, 0.5, 1.0)], [Work(20.0, 0.5, 1.0)]]
    assert [Recorded(groups).group(index)[0].seconds for index in range(4)] == [10.0, 20.0, 10.0, 20.0]
    with pytest.raises(ValueError, match="no recorded group"):
        Recorded([])


def test_throughput_gives_idle_harness_slots_to_evaluators() -> None:
    """One evaluator is far too few: slots that hardly any harness uses are made evaluators, in few moves."""
    told = scenario(
        steps=24,
        engines=Engines(slots=32, evaluation_seconds=60.0, harness_slots=200, evaluator_slots=1),
        variants=(variant("throughput"), variant("async", split=1)),
    )
    adaptive, fixed = compare(told)
    assert fixed.outcome.seconds > 2 * adaptive.outcome.seconds
    shifts = [detail for _, reason, detail in adaptive.trace.decisions if reason == "gain" and "evaluator" in detail]
    assert 1 <= len(shifts) <= 4


def test_stuck_execution_is_closed_by_its_limit_and_its_group_trains() -> None:
    """One execution in a thousand never returns: the time limit closes it once, and no step waits longer for it."""
    groups = [[Work(10.0, 0.5, 1.0)] * 4 for _ in range(8)]
    groups[3] = [Work(1e12, 0.5, 1.0), *groups[3][1:]]
    told = scenario(durations=Durations(timeout_seconds=100.0), steps=8)
    for policy in POLICIES:
        outcome = Simulation(told, variant(policy), Recorded(groups)).run()
        assert outcome.timed_out >= 1
        assert len(outcome.steps) == 8
        assert outcome.seconds < 8 * 250


@pytest.mark.parametrize("policy", POLICIES)
def test_run_that_cannot_go_on_says_so(policy: str) -> None:
    """Bounds that let nobody train: an error with the state, not a wait for ever."""
    told = scenario(bounds=Bounds(min_rollout_cells=4))
    with pytest.raises(SimulationStuck, match="step 0"):
        Simulation(told, variant(policy)).run()
