"""Group-relative advantages: pure functions of a group's rewards.

Statistics are over valid executions only, one reward each, however many paths an execution has. A missing or
non-finite reward is a grader failure, never a sample. A group without signal gives no advantages at all: float
residue in equal rewards must not be blown up by a tiny standard deviation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workflows.messages.group import NoSignal

EPSILON = 1e-6
EQUAL_WITHIN = 1e-6
"""Rewards whose range is below this (relative to the largest, if that is above 1) are equal: fp32 residue is."""


@dataclass(frozen=True)
class GroupAdvantages:
    """`advantages` in the order of the rewards: None for an invalid execution, 0.0 for valid ones without signal."""

    advantages: tuple[float | None, ...]
    valid: int
    mean_reward: float | None
    no_signal: NoSignal | None


def is_valid(reward: float | None) -> bool:
    """Whether a reward is a sample."""
    return reward is not None and math.isfinite(reward)


def group_advantages(
    rewards: Sequence[float | None], method: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
) -> GroupAdvantages:
    """Advantages of one group.

    - grpo: ``(r - mean) / (std + 1e-6)``, std with ddof = 1
    - dr_grpo: ``r - mean``
    - rloo: ``r`` minus the mean of the other valid rewards
    """
    valid = [float(reward) for reward in rewards if reward is not None and math.isfinite(reward)]
    count = len(valid)
    mean = math.fsum(valid) / count if count else None
    no_signal = _no_signal(valid)
    if no_signal is not None or mean is None:
        return GroupAdvantages(tuple(0.0 if is_valid(r) else None for r in rewards), count, mean, no_signal)
    if method == "grpo":
        std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in valid) / (count - 1))
        scale = 1.0 / (std + EPSILON)
    elif method == "dr_grpo":
        scale = 1.0
    else:
        scale = count / (count - 1)  # r - (sum - r) / (n - 1) == (r - mean) * n / (n - 1)
    advantages = tuple(
        (float(reward) - mean) * scale if reward is not None and math.isfinite(reward) else None for reward in rewards
    )
    return GroupAdvantages(advantages, count, mean, None)


def _no_signal(valid: Sequence[float]) -> NoSignal | None:
    if len(valid) < 2:
        return NoSignal.TOO_FEW_VALID
    largest, smallest = max(valid), min(valid)
    if largest - smallest <= EQUAL_WITHIN * max(1.0, abs(largest), abs(smallest)):
        return NoSignal.EQUAL_REWARDS
    return None
