"""Several variants over the same executions."""

from collections.abc import Callable
from dataclasses import dataclass

from infra.simulator.outcome import Outcome, Trace
from infra.simulator.run import Simulation
from infra.simulator.scenario import Scenario, Variant
from infra.simulator.workload import Drawn, Workload

SPLIT_POLICIES = ("async", "lending")
ALL_SPLITS = 8
"""Up to so many cells every split is tried."""


@dataclass(frozen=True)
class Compared:
    """One variant's outcome and what its picture needs."""

    variant: Variant
    outcome: Outcome
    trace: Trace


def workload_of(scenario: Scenario) -> Workload:
    """The executions that the scenario's distributions and seed describe."""
    follows = scenario.training.follows_duration
    return Drawn(scenario.durations, scenario.executions_per_group, scenario.seed, follows_duration=follows)


def compare(
    scenario: Scenario, workload: Workload | None = None, progress: Callable[[str], None] = lambda _: None
) -> list[Compared]:
    """Every variant of the scenario, in its order; `progress` is told each label when it is done.

    A policy with a fixed split is given its best one, unless the scenario or the variant names one.
    """
    shared = workload or workload_of(scenario)
    results = []
    for variant in scenario.variants:
        results.append(at_best_split(scenario, variant, shared))
        progress(variant.label)
    return results


def at_best_split(scenario: Scenario, variant: Variant, workload: Workload) -> Compared:
    """The variant as it is, or the fastest of all its splits when it has one and none is named."""
    cells = variant.cells or scenario.cells
    if variant.policy not in SPLIT_POLICIES or variant.split or scenario.split or cells < 3:
        return _run(scenario, variant, workload)
    known: dict[int, Compared] = {}

    def at(split: int) -> float:
        if split not in known:
            known[split] = _run(scenario, variant.model_copy(update={"split": split}), workload)
        return known[split].outcome.seconds

    if cells <= ALL_SPLITS:
        best = min(range(1, cells), key=at)
    else:  # a coarse row first, then the neighbours of its best, ever closer
        stride = max(1, cells // 6)
        best = min(range(stride, cells, stride), key=at)
        while stride > 1:
            stride = stride // 2
            near = (best - stride, best, best + stride)
            best = min((split for split in near if 0 < split < cells), key=at)
    return known[best]


def _run(scenario: Scenario, variant: Variant, workload: Workload) -> Compared:
    simulation = Simulation(scenario, variant, workload)
    outcome = simulation.run()
    return Compared(variant, outcome, simulation.trace)


def ablation(scenario: Scenario) -> Scenario:
    """The scenario with streaming taken away, and then with each burst shuffled as a whole, for every elastic policy
    and each baseline."""
    kinds = [
        ("streaming", {"streaming": True, "shuffle": False}),
        ("no stream", {"streaming": False, "shuffle": False}),
        ("shuffled", {"streaming": False, "shuffle": True}),
    ]
    variants = [
        variant.model_copy(update={**changes, "label": f"{variant.label}, {name}"})
        for variant in scenario.variants
        for name, changes in kinds
    ]
    return Scenario.model_validate({**scenario.model_dump(), "variants": [v.model_dump() for v in variants]})
