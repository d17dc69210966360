"""Sets of time intervals as arrays [n, 2] (float64, seconds): unions, intersections, lengths, counts over time."""

from collections.abc import Iterable

import numpy as np

Intervals = np.ndarray
NONE: Intervals = np.empty((0, 2))


def of(pairs: Iterable[tuple[float, float]]) -> Intervals:
    """Intervals [n, 2] from (begin, end); empty ones are dropped."""
    found = np.array([(begin, end) for begin, end in pairs if end > begin], dtype=np.float64)
    return found.reshape(-1, 2)


def merged(intervals: Intervals) -> Intervals:
    """The union as disjoint intervals in order."""
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(intervals):
        return NONE
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((ordered[first, 0], reach[last]), axis=1)


def length(intervals: Intervals) -> float:
    """Seconds covered by disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def common(one: Intervals, other: Intervals) -> Intervals:
    """What two unions (each disjoint and in order) share."""
    if not len(one) or not len(other):
        return NONE
    if len(one) > len(other):
        one, other = other, one
    first = np.searchsorted(other[:, 1], one[:, 0], side="right")
    after = np.searchsorted(other[:, 0], one[:, 1], side="left")
    pieces = [
        np.stack((np.maximum(other[low:high, 0], begin), np.minimum(other[low:high, 1], end)), axis=1)
        for (begin, end), low, high in zip(one, first, after, strict=True)
        if high > low
    ]
    return np.concatenate(pieces) if pieces else NONE


def without(one: Intervals, other: Intervals) -> Intervals:
    """What the first union has and the second has not (each disjoint and in order)."""
    if not len(one) or not len(other):
        return one
    low, high = min(one[0, 0], other[0, 0]) - 1, max(one[-1, 1], other[-1, 1]) + 1
    edges = np.concatenate(([low], other.reshape(-1), [high])).reshape(-1, 2)
    return common(one, edges[edges[:, 1] > edges[:, 0]])


class Cumulative:
    """How much was done until a moment: each of `amounts` [n] is spread evenly over its interval (n, 2); they may
    overlap. An amount without duration takes `LEAST` seconds."""

    LEAST = 1e-3

    def __init__(self, spans: Intervals, amounts: np.ndarray) -> None:
        ends = np.maximum(spans[:, 1], spans[:, 0] + self.LEAST)
        slopes = amounts / (ends - spans[:, 0])
        moments = np.concatenate((spans[:, 0], ends))
        changes = np.concatenate((slopes, -slopes))
        order = np.argsort(moments, kind="stable")
        self._moments = moments[order]
        rates = np.cumsum(changes[order])[:-1]
        self._totals = np.concatenate(([0.0], np.cumsum(rates * np.diff(self._moments)))) if len(spans) else rates

    def between(self, begin: float, end: float) -> float:
        """What was done from `begin` to `end`."""
        if not len(self._moments):
            return 0.0
        low, high = np.interp([begin, end], self._moments, self._totals)
        return max(0.0, float(high - low))


def steps(intervals: Intervals, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(moments, levels): the summed weight (default 1 each) of the intervals that hold from each moment on."""
    if not len(intervals):
        return np.empty(0), np.empty(0)
    weights = np.ones(len(intervals)) if weights is None else weights
    moments = intervals.reshape(-1)
    changes = np.stack((weights, -weights), axis=1).reshape(-1)
    distinct, where = np.unique(moments, return_inverse=True)
    levels = np.zeros(len(distinct))
    np.add.at(levels, where, changes)
    return distinct, np.cumsum(levels)
