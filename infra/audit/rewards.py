"""Group statistics by the audit's own hand: float64, over valid executions only."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean, stdev
from typing import Any

EPSILON = 1e-6
"""Added to the standard deviation; also the range below which rewards count as equal."""

METHODS = ("grpo", "dr_grpo", "rloo")


def is_valid(member: Mapping[str, Any]) -> bool:
    """Whether a group member enters statistics: scored, with a finite reward, and not left out."""
    reward = member["reward"]
    return member["outcome"] == "scored" and not member["left_out"] and reward is not None and isfinite(reward)


def has_spread(rewards: Sequence[float]) -> bool:
    """At least two rewards that are not all equal."""
    return len(rewards) >= 2 and max(rewards) - min(rewards) > EPSILON * max(1.0, *map(abs, rewards))


def advantages(rewards: Mapping[str, float], method: str) -> dict[str, float]:
    """Advantage of every execution. `method`: grpo (std with ddof = 1), dr_grpo, or rloo (leave one out)."""
    mean = fmean(rewards.values())
    if method == "dr_grpo":
        return {name: reward - mean for name, reward in rewards.items()}
    if method == "rloo":
        total, others = sum(rewards.values()), len(rewards) - 1
        return {name: reward - (total - reward) / others for name, reward in rewards.items()}
    scale = stdev(rewards.values(), mean) + EPSILON
    return {name: (reward - mean) / scale for name, reward in rewards.items()}


def agree(recorded: float, right: float) -> bool:
    """Equal but for float32 and the order of summing."""
    return abs(recorded - right) <= 1e-5 * max(1.0, abs(right))


def choose(rewards: Mapping[str, float], recorded: Mapping[str, float], method: str | None) -> dict[str, float]:
    """Advantages by `method`; without one by the published method that all recorded ones agree with, else by grpo.

    The method is among the settings of the batch that consumed a group; one that waits may have followed any.
    """
    if method is not None:
        return advantages(rewards, method)
    for candidate in METHODS:
        own = advantages(rewards, candidate)
        if all(agree(recorded[name], right) for name, right in own.items()):
            return own
    return advantages(rewards, METHODS[0])
