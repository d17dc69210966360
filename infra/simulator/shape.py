"""The shape of durations from the three published facts about them.

An execution lasts mean * Q * X, with Q (per query) and X (per execution) log-normal of mean 1. Then

    mean of a query's longest / mean of an execution = E[max of N draws of X]   fixes the sigma of X,
    share of queries at 4 h or more                                            fixes the sigma of Q.

The same two sigmas with another mean and a time limit describe a workload of which the share of long queries and the
share that ended by the limit are known.
"""

from collections.abc import Callable

import numpy as np

from workflows.messages.base import Message

LONG_HOURS = 4.0
_DRAWS, _SEED, _ROUNDS = 200_000, 20_261, 60


class Shape(Message):
    """`query_sigma`, `execution_sigma`: standard deviations of log Q and log X."""

    query_sigma: float
    execution_sigma: float


def shape_of(size: int, mean_hours: float, longest_hours: float, long_share: float) -> Shape:
    """The sigmas that give a group of `size` these facts.

    Raises ValueError when none does: with few members a wide X alone makes more long queries than there are.
    """
    query, longest = _standard(size)
    own = _root(lambda s: float(np.exp(s * longest - s * s / 2).mean()) - longest_hours / mean_hours, 0.0, 3.0)

    def excess(s: float) -> float:
        hours = mean_hours * np.exp(s * query - s * s / 2 + own * longest - own * own / 2)
        return float((hours >= LONG_HOURS).mean()) - long_share

    if excess(0.0) > 0 or excess(1.0) < 0:
        raise ValueError(f"no spread of queries gives {long_share:.2%} long ones with groups of {size}")
    return Shape(query_sigma=_root(excess, 0.0, 1.0), execution_sigma=own)


def limited(shape: Shape, size: int, long_share: float, limited_share: float) -> tuple[float, float]:
    """(mean hours without a limit, limit in hours) so that `long_share` of queries are long and `limited_share` of
    those end by the limit."""
    query, longest = _standard(size)
    variance = shape.query_sigma**2 + shape.execution_sigma**2
    factor = np.exp(shape.query_sigma * query + shape.execution_sigma * longest - variance / 2)
    mean = LONG_HOURS / float(np.quantile(factor, 1 - long_share))
    return mean, mean * float(np.quantile(factor, 1 - long_share * limited_share))


def _standard(size: int) -> tuple[np.ndarray, np.ndarray]:
    """[draws] standard normal of the query, and the largest of `size` standard normals."""
    rng = np.random.default_rng(_SEED)
    return rng.standard_normal(_DRAWS), rng.standard_normal((_DRAWS, size)).max(1)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is zero, by bisection."""
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
