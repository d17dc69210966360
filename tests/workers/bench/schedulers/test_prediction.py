"""The simulator over a plan: what is known before anything has run."""

import pytest

from infra.simulator.recorded import RecordedRun
from tests.workers.bench.schedulers.test_workload import small
from workers.bench.schedulers.prediction import best_split, micro_steps, planned, predicted_seconds
from workflows.messages.policies import PolicySettings


def test_the_plan_holds_the_executions_of_the_file() -> None:
    workload = small()
    scenario, works = planned(workload)
    assert [work.seconds for work in works.group(3)] == pytest.approx([1.0, 2.0])
    assert (scenario.steps, scenario.burst_steps, scenario.staleness) == (2, 2, 0.5)
    # All cells together: three times 30 tokens a group, two groups a step.
    assert scenario.training.step_seconds == pytest.approx(3 * 30 / 100 * 2 / 2)


def test_a_plan_that_trains_longer_gets_more_cells() -> None:
    policy = PolicySettings(name="async", streaming=False)
    light = small(cells=4, training_tokens_per_second=100_000.0)
    heavy = small(cells=4, training_tokens_per_second=20.0)
    assert best_split(light, policy) < best_split(heavy, policy)


def test_a_prediction_is_of_the_policy_asked_for() -> None:
    scenario, works = planned(small(cells=2, training_tokens_per_second=5.0))
    reference = RecordedRun(scenario, works, 0.0, 4)
    seconds = {
        name: predicted_seconds(reference, PolicySettings(name=name, streaming=name == "waterlevel"))
        for name in ("waterlevel", "colocate")
    }
    assert seconds["waterlevel"] > 0
    assert seconds["colocate"] > 0


def test_a_plan_is_cut_as_packing_cuts() -> None:
    """A path each, the longest first: the live budget cuts nothing and joins nothing."""
    assert micro_steps([30, 60, 45]) == [60, 45, 30]
    _, works = planned(small())
    assert list(works.cut(0)) == [60, 30]
