"""The executions: model time, tool time and training work of every group, the same for every policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from infra.simulator.scenario import Durations

CHUNK = 64
"""Groups drawn at once; group i is the same whatever was asked for before it."""


@dataclass(frozen=True, slots=True)
class Work:
    """One execution on an idle engine. `seconds`: model and tool time; `weight`: training work, 1 on average.

    `started`: when it started in the run that it was recorded in, from that one's first launch; of those dispatched
    together the earlier starts first.
    """

    seconds: float
    model_share: float
    weight: float
    started: float = 0.0


class Workload(Protocol):
    """Groups by their number, in order of dispatch."""

    def group(self, index: int) -> Sequence[Work]: ...

    def cut(self, index: int) -> Sequence[float]:
        """Sizes of the group's micro-steps beside each other, in their order; empty: equal ones, as many as are set."""
        ...


class Drawn:
    """Groups drawn from distributions by seed."""

    def __init__(self, durations: Durations, size: int, seed: int, *, follows_duration: bool = True) -> None:
        self._durations, self._size, self._seed = durations, size, seed
        self._follows = follows_duration
        self._groups: list[list[Work]] = []

    def group(self, index: int) -> Sequence[Work]:
        while len(self._groups) <= index:
            self._groups += self._draw(len(self._groups) // CHUNK)
        return self._groups[index]

    def cut(self, index: int) -> Sequence[float]:
        return ()

    def _draw(self, chunk: int) -> list[list[Work]]:
        told = self._durations
        rng = np.random.default_rng([self._seed, chunk])
        seconds = told.mean_seconds * factors(rng, told, CHUNK, self._size)
        low, high = told.model_share - told.model_share_spread, told.model_share + told.model_share_spread
        shares = np.clip(rng.uniform(low, high, seconds.shape), 0.0, 1.0)
        worked = np.minimum(seconds, told.timeout_seconds or np.inf)
        weights = worked / told.mean_seconds if self._follows else np.ones_like(worked)
        return [
            [Work(float(s), round(float(m), 1), float(w)) for s, m, w in zip(*row, strict=True)]
            for row in zip(seconds, shares, weights, strict=True)
        ]


def factors(rng: np.random.Generator, told: Durations, groups: int, size: int) -> np.ndarray:
    """[groups, size] float64 with mean 1: a log-normal factor of the query times one of the execution."""
    query = told.query_sigma * rng.standard_normal((groups, 1))
    own = told.execution_sigma * rng.standard_normal((groups, size))
    return np.exp(query + own - (told.query_sigma**2 + told.execution_sigma**2) / 2)


class Recorded:
    """Groups of a recorded run, over and over when more are needed than were recorded; `cuts`: of each, if known."""

    def __init__(self, groups: Sequence[Sequence[Work]], cuts: Sequence[Sequence[float]] = ()) -> None:
        if not groups:
            raise ValueError("no recorded group")
        self._groups, self._cuts = groups, cuts

    def group(self, index: int) -> Sequence[Work]:
        return self._groups[index % len(self._groups)]

    def cut(self, index: int) -> Sequence[float]:
        return self._cuts[index % len(self._groups)] if self._cuts else ()
