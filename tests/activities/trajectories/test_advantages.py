"""Field cases 32 (the reward side) and 33."""

import math
from typing import Literal

import numpy as np
import pytest

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
