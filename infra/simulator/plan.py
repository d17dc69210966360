"""What to buy, before a GPU is spent: a search over cells, slots, B, N, mu and policies for a budget.

Every candidate is simulated over a few steps with one seed; the best ones again with several seeds. How sure the
answer is: in what share of the seeds it beats the runner-up, and the spread of its hours.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

from pydantic import Field

from infra.simulator.compare import at_best_split, workload_of
from infra.simulator.scenario import PolicyName, Scenario, Variant
from workflows.messages.base import Message
from workflows.messages.errors import InvalidSpec
from workflows.policy.staleness import carry_over_for


class Search(Message):
    """The choices. `executions`: to be trained on in all; `max_staleness` bounds E[d].

    Slots are of the whole pool: what the engines' memory and speed allow.
    """

    cells: tuple[int, ...] = Field(default=(2, 4, 8), min_length=1)
    slots: tuple[int, ...] = Field(default=(), description="empty: the scenario's")
    groups_per_step: tuple[int, ...] = Field(default=(), description="B; empty: the scenario's")
    executions_per_group: tuple[int, ...] = Field(default=(), description="N; empty: the scenario's")
    burst_steps: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1, description="mu")
    staleness: tuple[float, ...] = Field(default=(1.0,), min_length=1, description="E[d]; phi follows")
    policies: tuple[PolicyName, ...] = Field(default=("waterlevel", "throughput", "async"), min_length=1)
    trials: int = Field(default=40, ge=2, le=2000, description="candidates simulated at most")
    finalists: int = Field(default=3, ge=2, le=10)
    seeds: int = Field(default=5, ge=2, le=50, description="of each finalist")
    short_steps: int = Field(default=12, ge=2, description="optimizer steps of a trial")


@dataclass(frozen=True)
class Candidate:
    """One way to set a run up."""

    policy: PolicyName
    cells: int
    slots: int
    groups_per_step: int
    executions_per_group: int
    burst_steps: int
    staleness: float

    @property
    def carry_over(self) -> float:
        return carry_over_for(self.staleness, self.burst_steps)

    def scenario(self, base: Scenario, steps: int, seed: int) -> Scenario:
        """The base with this candidate's numbers. Training work per execution stays what it is in the base."""
        work = self.groups_per_step * self.executions_per_group
        scale = work / (base.groups_per_step * base.executions_per_group)
        values = base.model_dump()
        values |= {
            "seed": seed,
            "cells": self.cells,
            "groups_per_step": self.groups_per_step,
            "executions_per_group": self.executions_per_group,
            "burst_steps": self.burst_steps,
            "staleness": self.staleness,
            "steps": steps,
            "split": 0,
            "engines": {**values["engines"], "slots": self.slots},
            "training": {**values["training"], "step_seconds": base.training.step_seconds * scale},
            "variants": [{"label": "plan", "policy": self.policy}],
        }
        return Scenario.model_validate(values)


class Finalist(Message):
    """A candidate that was looked at closely. `hours` per 1,000 executions trained, mean over seeds and its spread."""

    policy: str
    cells: int
    split: int
    slots: int
    groups_per_step: int
    executions_per_group: int
    burst_steps: int
    carry_over: float
    staleness: float
    hours_per_thousand: float
    spread: float
    training_idle_share: float
    rollout_idle_share: float


class PlanReport(Message):
    """`confidence`: share of seeds in which the best beats the runner-up; `node_hours` for the base's executions."""

    trials: int
    possible: int
    best: Finalist
    others: tuple[Finalist, ...]
    confidence: float
    gain_over_runner_up: float
    hours: float
    node_hours: float
    steps: int


def candidates_of(base: Scenario, search: Search) -> tuple[list[Candidate], int]:
    """Up to `trials` candidates, spread over all by seed; and how many there are. Raises InvalidSpec if none is."""
    every = [
        Candidate(*values)
        for values in itertools.product(
            search.policies,
            search.cells,
            search.slots or (base.engines.slots,),
            search.groups_per_step or (base.groups_per_step,),
            search.executions_per_group or (base.executions_per_group,),
            search.burst_steps,
            search.staleness,
        )
    ]
    possible = [one for one in every if one.carry_over >= 0 and one.slots >= one.cells and one.cells >= 1]
    if not possible:
        raise InvalidSpec("no combination is possible: E[d] too small for every mu, or fewer slots than cells")
    chosen = possible if len(possible) <= search.trials else random.Random(base.seed).sample(possible, search.trials)
    return chosen, len(possible)


def plan(base: Scenario, search: Search, progress: Callable[[int, int], None] = lambda _done, _all: None) -> PlanReport:
    """Search, then look closely at the best. `progress` is told (done, of how many)."""
    chosen, possible = candidates_of(base, search)
    total = len(chosen) + search.finalists * search.seeds
    scores: dict[Candidate, float] = {}
    for index, candidate in enumerate(chosen):
        scores[candidate] = _measure(base, candidate, search.short_steps, base.seed)[0]
        progress(index + 1, total)
    finalists = sorted(chosen, key=lambda one: scores[one])[: search.finalists]
    looked: list[tuple[Finalist, list[float]]] = []
    for place, candidate in enumerate(finalists):
        runs = []
        for seed in range(search.seeds):
            runs.append(_measure(base, candidate, search.short_steps, base.seed + 1 + seed))
            progress(len(chosen) + place * search.seeds + seed + 1, total)
        looked.append((_finalist(candidate, runs), [run[0] for run in runs]))
    looked.sort(key=lambda pair: pair[0].hours_per_thousand)
    best, times = looked[0]
    second = looked[1][1] if len(looked) > 1 else times
    wins = sum(mine < other for mine, other in zip(times, second, strict=True)) / len(times) if len(looked) > 1 else 1.0
    executions = base.steps * base.groups_per_step * base.executions_per_group
    hours = best.hours_per_thousand * executions / 1000
    return PlanReport(
        trials=len(chosen),
        possible=possible,
        best=best,
        others=tuple(finalist for finalist, _ in looked[1:]),
        confidence=wins,
        gain_over_runner_up=fmean(second) / fmean(times) - 1,
        hours=hours,
        node_hours=hours * base.nodes,
        steps=-(-executions // (best.groups_per_step * best.executions_per_group)),
    )


def _measure(base: Scenario, candidate: Candidate, steps: int, seed: int) -> tuple[float, float, float, int]:
    """(hours per 1,000 executions trained, training idle share, rollout idle share, split)."""
    scenario = candidate.scenario(base, steps, seed)
    streaming = candidate.policy not in ("async", "colocate", "lending")
    variant = Variant(label="plan", policy=candidate.policy, streaming=streaming)
    outcome = at_best_split(scenario, variant, workload_of(scenario)).outcome
    trained = steps * candidate.groups_per_step * candidate.executions_per_group
    hours = outcome.hours / trained * 1000
    return hours, outcome.training_idle_share, outcome.rollout_idle_share, outcome.split


def _finalist(candidate: Candidate, runs: list[tuple[float, float, float, int]]) -> Finalist:
    hours = [run[0] for run in runs]
    return Finalist(
        policy=candidate.policy,
        cells=candidate.cells,
        split=runs[0][3],
        slots=candidate.slots,
        groups_per_step=candidate.groups_per_step,
        executions_per_group=candidate.executions_per_group,
        burst_steps=candidate.burst_steps,
        carry_over=candidate.carry_over,
        staleness=candidate.staleness,
        hours_per_thousand=fmean(hours),
        spread=stdev(hours) if len(hours) > 1 else 0.0,
        training_idle_share=fmean(run[1] for run in runs),
        rollout_idle_share=fmean(run[2] for run in runs),
    )
