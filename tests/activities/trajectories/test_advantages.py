"""Field cases 32 (the reward side) and 33."""

import math
import statistics
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.trajectories.advantages import group_advantages
from workflows.messages.group import NoSignal

Method = Literal["grpo", "dr_grpo", "rloo"]
METHODS: list[Method] = ["grpo", "dr_grpo", "rloo"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "rewards",
    [
        [0.1] * 3,  # two-pass float64 std is 1.39e-17
        [0.35] * 7,  # one-pass variance is negative
        [float(np.float32(0.1))] * 7,
        [0.1, float(np.float32(0.1)), 0.1],
        [0.3, 0.1 + 0.2, 0.3],
        [0.0, 0.0],
        [1e6, 1e6 + 1e-3],
    ],
)
def test_equal_rewards_give_exactly_zero(rewards: list[float], method: Method) -> None:
    found = group_advantages(rewards, method)
    assert found.no_signal is NoSignal.EQUAL_REWARDS
    assert found.advantages == (0.0,) * len(rewards)
    assert found.valid == len(rewards)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rewards", [[0.7], [None, 0.7, None, math.nan], [None, None], []])
def test_fewer_than_two_valid_executions_are_no_signal(rewards: list[float | None], method: Method) -> None:
    found = group_advantages(rewards, method)
    assert found.no_signal is NoSignal.TOO_FEW_VALID
    assert all(advantage in (0.0, None) for advantage in found.advantages)


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    found = group_advantages([1.0, 0.0, 0.0, 0.0])
    assert found.mean_reward == 0.25
    std = math.sqrt((0.75**2 + 3 * 0.25**2) / 3)
    assert found.advantages == pytest.approx((0.75 / (std + 1e-6), *[-0.25 / (std + 1e-6)] * 3))


def test_dr_grpo_only_centres() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 0.0], "dr_grpo").advantages == (0.75, -0.25, -0.25, -0.25)


def test_rloo_leaves_one_out() -> None:
    rewards = [0.35] * 7 + [0.95]
    wanted = [reward - (sum(rewards) - reward) / 7 for reward in rewards]
    assert group_advantages(rewards, "rloo").advantages == pytest.approx(wanted)
    assert group_advantages(rewards, "rloo").advantages[-1] == pytest.approx(0.6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("broken", [None, math.nan, math.inf, -math.inf])
def test_a_failed_grader_is_no_sample(broken: float | None, method: Method) -> None:
    found = group_advantages([1.0, broken, 0.0, broken, 0.0], method)
    clean = group_advantages([1.0, 0.0, 0.0], method)
    assert (found.advantages[1], found.advantages[3]) == (None, None)
    assert [a for a in found.advantages if a is not None] == list(clean.advantages)
    assert (found.valid, found.mean_reward) == (3, clean.mean_reward)


@pytest.mark.parametrize("method", METHODS)
def test_advantages_of_a_group_sum_to_zero(method: Method) -> None:
    found = group_advantages([0.2, 0.9, 0.4, 1.0, 0.0], method).advantages
    assert sum(a for a in found if a is not None) == pytest.approx(0.0, abs=1e-12)
    assert all(a is not None and math.isfinite(a) for a in found)


def test_a_small_real_difference_is_a_signal() -> None:
    found = group_advantages([0.50, 0.51])
    assert found.no_signal is None
    assert found.advantages == pytest.approx((-math.sqrt(0.5), math.sqrt(0.5)), rel=1e-3)


def worked_out(rewards: list[Fraction], method: Method) -> list[float]:
    """Exact rational arithmetic up to the one root.

    grpo: Shao et al. 2024, section 4.1.2, with the sample deviation (ddof = 1). dr_grpo: Liu et al. 2025, section 3.2:
    no deviation. rloo: Ahmadian et al. 2024 ("Back to Basics"): each against the mean of the others.
    """
    if method == "rloo":
        return [float(r - (sum(rewards) - r) / (len(rewards) - 1)) for r in rewards]
    mean = sum(rewards) / Fraction(len(rewards))
    centred = [r - mean for r in rewards]
    if method == "dr_grpo":
        return [float(c) for c in centred]
    deviation = math.sqrt(statistics.variance(rewards))
    return [float(c) / (deviation + 1e-6) for c in centred]


@pytest.mark.parametrize("method", METHODS)
@given(
    rewards=st.lists(st.integers(0, 64).map(lambda n: Fraction(n, 64)), min_size=2, max_size=16).filter(
        lambda rewards: len(set(rewards)) > 1
    ),
    failed=st.sets(st.integers(0, 15), max_size=4),
)
def test_any_rewards_against_exact_arithmetic(method: Method, rewards: list[Fraction], failed: set[int]) -> None:
    """Failed graders anywhere among them change nothing for the others."""
    given_rewards: list[float | None] = [float(reward) for reward in rewards]
    for place in sorted(failed):
        given_rewards.insert(min(place, len(given_rewards)), None)
    found = group_advantages(given_rewards, method)
    assert [place for place, one in enumerate(found.advantages) if one is None] == [
        place for place, reward in enumerate(given_rewards) if reward is None
    ]
    valid = [one for one in found.advantages if one is not None]
    assert valid == pytest.approx(worked_out(rewards, method), rel=1e-9, abs=1e-12)
    assert (found.valid, found.mean_reward) == (len(rewards), pytest.approx(float(sum(rewards) / len(rewards))))
