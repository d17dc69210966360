"""Micro-steps of their own sizes, and what lies between them."""

from collections import deque
from typing import Any

import pytest
import simpy

from infra.simulator.run import Simulation
from infra.simulator.scenario import Durations, Engines, Scenario, TrainingModel, Transitions, Variant
from infra.simulator.trainer import Batch, ReadyGroup, Trainer
from infra.simulator.workload import Recorded, Work


def committed_at(groups: list[ReadyGroup], cells: int, **settings: Any) -> float:
    """When a batch of these groups, all ready at once, is committed."""
    env, commits = simpy.Environment(), list[Batch]()
    values = {"streaming": True, "micro_steps": 4, "update_seconds": 1.0, "on_commit": commits.append}
    trainer = Trainer(env, deque(groups), **(values | settings))
    for cell in range(cells):
        trainer.join(cell)
    trainer.open(len(groups))
    trainer.work()
    env.run()
    assert len(commits) == 1
    return env.now


def group(*sizes: float, seconds: float = 40.0) -> ReadyGroup:
    return ReadyGroup(0, 0, seconds, 0.0, sizes)


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ((), 20.0),  # four of ten seconds each
        ((1, 1, 1, 1), 20.0),
        ((7, 1, 1, 1), 28.0),  # the longest one is all that the other cell waits for
        ((1, 1, 1, 7), 32.0),  # and if it comes last
        ((1, 1), 20.0),
    ],
)
def test_a_batch_lasts_as_its_longest_micro_step_makes_it(sizes: tuple[float, ...], seconds: float) -> None:
    assert committed_at([group(*sizes)], cells=2) == pytest.approx(seconds + 1.0)
    assert committed_at([group(*sizes)], cells=2, streaming=False, claims=True) == pytest.approx(seconds + 1.0)


def test_a_group_without_training_work_costs_nothing() -> None:
    assert committed_at([group(seconds=0.0), group(0.0, 0.0, seconds=0.0)], cells=1) == pytest.approx(1.0)


def test_claims_and_the_first_of_a_batch_take_their_time() -> None:
    """Two micro-steps for each of two cells."""
    assert committed_at([group()], cells=2, claim_seconds=0.5, pickup_seconds=3.0) == pytest.approx(3 + 2 * 10.5 + 1)


def recorded_run(training: TrainingModel, *, backlog_seconds: float = 0.0, **changes: float) -> float:
    """Two bursts of two steps of one group of two executions of 10 s; a step trains 4 s on the core."""
    scenario = Scenario(
        cells=2,
        groups_per_step=1,
        executions_per_group=2,
        steps=4,
        burst_steps=2,
        staleness=0.5,
        hold_seconds=0.0,
        durations=Durations(mean_seconds=10.0),
        engines=Engines(slots=16, slowdown=0.0, backlog_seconds=backlog_seconds),
        training=training,
        transitions=Transitions(to_training_seconds=0.0, to_rollout_seconds=0.0, reroute_seconds=0.0, **changes),
    )
    works = Recorded([[Work(10.0, 0.5, 1.0)] * 2])
    return Simulation(scenario, Variant(label="a", policy="async", split=1), works).run().seconds


def test_what_the_control_plane_adds_is_added_where_it_happens() -> None:
    plain = TrainingModel(step_seconds=2.0, update_seconds=0.0, micro_steps_per_group=1)
    alone = recorded_run(plain)
    assert alone == pytest.approx(2 * (10.0 + 2 * 4.0))
    # Every group of a burst comes at once, so its admission is waited for once.
    assert recorded_run(plain.model_copy(update={"admission_seconds": 0.5})) == pytest.approx(alone + 2 * 0.5)
    assert recorded_run(plain.model_copy(update={"opening_seconds": 0.5})) == pytest.approx(alone + 2 * 0.5)
    assert recorded_run(plain.model_copy(update={"claim_seconds": 0.5})) == pytest.approx(alone + 4 * 0.5)
    # Batches that open while executions run have their first micro-step when those are done.
    assert recorded_run(plain.model_copy(update={"pickup_seconds": 0.5})) == pytest.approx(alone + 2 * 0.5)
    assert recorded_run(plain, boundary_seconds=3.0) == pytest.approx(alone + 3.0)
    assert recorded_run(plain, first_batch_seconds=11.0) == pytest.approx(alone + 2 * 1.0)
    assert recorded_run(plain, join_seconds=11.0) == pytest.approx(alone + 1.0)
    # Until the backlog is cleared no group is ready, whoever has ended; the second burst has none.
    assert recorded_run(plain, backlog_seconds=13.0) == pytest.approx(alone + 3.0)
