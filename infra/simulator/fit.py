"""``python -m infra.simulator.fit``: fits the free parameters of the published comparisons, once.

Targets, and nothing else: 122B NL2RepoBench against Async and against Colocate (means of the published ranges), the
slack of 20.85%, and the duration facts. These fix the shape of durations in closed form for idle engines; as published
durations are those of loaded ones, mean and spread are then corrected until the simulated ones agree. Capacity, step
time, Async's split and the group size are searched on a grid that is refined around its best point. How much a full
engine slows down is the simulator's default. Writes `paper_fit.json` with the recipe, the best points and how the
predicted rows react to every parameter.
"""

import itertools
import json
from pathlib import Path
from statistics import fmean

from infra.simulator.paper import (
    ABLATION_STEPS,
    CELL_SEEDS,
    FIT_FILE,
    HOUR,
    LARGE,
    SHORT_STEPS,
    SMALL,
    Fit,
    Laboratory,
    at_both,
)
from infra.simulator.scenario import Engines
from infra.simulator.shape import limited, shape_of

TARGETS = {"async": 1.475, "colocate": 1.415, "slack": 0.2085}
MEAN_HOURS, LONGEST_HOURS, LONG_SHARE = 1.93, 2.96, 0.0951
LONG_SHARE_LARGE, LIMITED_SHARE_LARGE = 0.611, 0.382
COARSE_GROUPS, GROUPS, SIZES = 8, 16, (8, 16)
CAPACITIES, STEP_HOURS, SPLITS = (2.0, 3.0, 4.0), (0.4, 0.5, 0.6), (0.25, 0.375, 0.5)
REFINED_CAPACITIES, REFINED_HOURS = (0.9, 0.95, 1.0, 1.05, 1.1), (1.0, 1.06, 1.12, 1.18)
CORRECTIONS = 4
LONG_SLOPE = 0.9
"""Relative change of the mean per change of the share of long queries, near a share of 0.6."""
SLOWDOWN = Engines().slowdown
_DURATIONS = ("query_sigma", "execution_sigma", "mean_hours", "long_mean_hours", "long_timeout_hours")
LARGE_SETTING = LARGE.model_copy(update={"steps": SHORT_STEPS})
SETTING = SMALL.model_copy(update={"steps": SHORT_STEPS})


def start(size: int, capacity: float, step_hours: float, groups: int) -> Fit:
    """A point of the search, with the shape of durations for groups of `size` on engines as loaded as they are."""
    return _loaded(
        _idle(size).model_copy(
            update={"capacity": capacity, "step_hours": step_hours, "groups_per_step": groups, "slowdown": SLOWDOWN}
        )
    )


def _loaded(fit: Fit) -> Fit:
    """The same facts on loaded engines: idle means shrink, and the spread grows, as long executions end when engines
    are emptier. The mean of the 2.4T workload follows its own share of long queries."""
    for _ in range(CORRECTIONS):
        laboratory = Laboratory(fit, 1)
        outcomes = [laboratory.outcome(setting, "elastic", 0) for setting in at_both(SETTING)]
        mean = fmean(outcome.mean_execution_seconds for outcome in outcomes) / HOUR
        longest = fmean(outcome.mean_query_seconds for outcome in outcomes) / HOUR
        share = laboratory.outcome(LARGE_SETTING, "elastic", 0).long_query_share
        wider = (LONGEST_HOURS / MEAN_HOURS - 1) / (longest / mean - 1)
        fit = fit.model_copy(
            update={
                "mean_hours": round(fit.mean_hours * MEAN_HOURS / mean, 4),
                "long_mean_hours": round(fit.long_mean_hours * (1 - LONG_SLOPE * (share - LONG_SHARE_LARGE)), 4),
                "execution_sigma": round(fit.execution_sigma * wider, 5),
            }
        )
    return fit


def _idle(size: int) -> Fit:
    """The shape of durations for groups of `size`; the rest still to be fitted."""
    shape = shape_of(size, MEAN_HOURS, LONGEST_HOURS, LONG_SHARE)
    mean, limit = limited(shape, size, LONG_SHARE_LARGE, LIMITED_SHARE_LARGE)
    return Fit(
        capacity=2.0,
        step_hours=0.5,
        split_share=0.5,
        groups_per_step=GROUPS,
        executions_per_group=size,
        query_sigma=round(shape.query_sigma, 5),
        execution_sigma=round(shape.execution_sigma, 5),
        mean_hours=MEAN_HOURS,
        long_mean_hours=round(mean, 4),
        long_timeout_hours=round(limit, 4),
    )


def points(fit: Fit, seeds: int, splits: tuple[float, ...] = SPLITS) -> list[tuple[float, Fit, dict[str, float]]]:
    """(loss, parameters, simulated targets) for every split: the runs without Async are shared."""
    base = Laboratory(fit, seeds)
    colocate, slack = base.both(SETTING, "colocate"), base.slack(SETTING)
    found = []
    for split in splits:
        candidate = fit.model_copy(update={"split_share": split})
        values = {"async": _async(base, candidate, seeds), "colocate": colocate, "slack": slack}
        found.append((_loss(values), candidate, values))
    return found


def _async(base: Laboratory, candidate: Fit, seeds: int) -> float:
    other = Laboratory(candidate, seeds)
    other.adopt(base)
    return other.both(SETTING, "async")


def _loss(values: dict[str, float]) -> float:
    """Sum of squared relative errors; of slack the part that is used, so that all three weigh alike."""
    errors = [values[name] / TARGETS[name] - 1 for name in ("async", "colocate")]
    errors.append((1 - values["slack"]) / (1 - TARGETS["slack"]) - 1)
    return sum(error**2 for error in errors)


def sensitivity(fit: Fit, seeds: int) -> dict[str, dict[str, float]]:
    """The predicted rows when one assumption changes and nothing is fitted again."""
    changes: dict[str, dict[str, float]] = {
        "as fitted": {},
        "capacity x 0.8": {"capacity": fit.capacity * 0.8},
        "capacity x 1.25": {"capacity": fit.capacity * 1.25},
        "step time x 0.8": {"step_hours": fit.step_hours * 0.8},
        "step time x 1.25": {"step_hours": fit.step_hours * 1.25},
        "engines that do not slow down, same loaded durations": {
            "slowdown": 0.0,
            **_idle(fit.executions_per_group).model_dump(include=set(_DURATIONS)),
        },
        "engines that slow down twice as much": {"slowdown": 2 * fit.slowdown},
        "half the groups a step": {"groups_per_step": fit.groups_per_step // 2},
    }
    return {name: predicted(Laboratory(fit.model_copy(update=change), seeds)) for name, change in changes.items()}


def predicted(laboratory: Laboratory) -> dict[str, float]:
    short = SMALL.model_copy(update={"steps": ABLATION_STEPS})
    large = LARGE.model_copy(update={"steps": SHORT_STEPS})
    values = {
        "Async / streaming Async": laboratory.both(short, "async", "async, streaming"),
        "streaming Colocate / elastic": laboratory.both(short, "colocate, streaming"),
        "4x8 / 8x4": laboratory.with_seeds(CELL_SEEDS).both(short, "4x8"),
        "2.4T Async / elastic": laboratory.ratio(large, "async"),
        "2.4T Colocate / elastic": laboratory.ratio(large, "colocate"),
    }
    return {name: round(value, 4) for name, value in values.items()}


def fit(seeds: int = 4) -> dict[str, object]:
    """The record to be written."""
    coarse = []
    for size, capacity, hours in itertools.product(SIZES, CAPACITIES, STEP_HOURS):
        coarse += points(start(size, capacity, hours, COARSE_GROUPS), 1)
        loss = min(point[0] for point in coarse[-len(SPLITS) :])
        print(f"N {size}, capacity {capacity}, step {hours} h: loss {loss:.4f}", flush=True)
    best = min(coarse, key=lambda point: point[0])[1]
    fine = []
    for capacity, hours in itertools.product(REFINED_CAPACITIES, REFINED_HOURS):
        point = start(best.executions_per_group, best.capacity * capacity, best.step_hours * hours, GROUPS)
        fine += points(point, seeds, (best.split_share,))
        print(f"capacity {point.capacity:.2f}, step {point.step_hours:.3f} h: loss {fine[-1][0]:.5f}", flush=True)
    fine.sort(key=lambda point: point[0])
    loss, chosen, values = fine[0]
    chosen = chosen.model_copy(
        update={"capacity": round(chosen.capacity, 4), "step_hours": round(chosen.step_hours, 4)}
    )
    return {
        "fit": chosen.model_dump(),
        "recipe": {
            "command": "python -m infra.simulator.fit",
            "targets": TARGETS,
            "duration_facts": {
                "mean_hours": MEAN_HOURS,
                "longest_hours": LONGEST_HOURS,
                "long_share": LONG_SHARE,
                "long_share_2.4T": LONG_SHARE_LARGE,
                "limited_share_2.4T": LIMITED_SHARE_LARGE,
            },
            "grid": {"capacity": CAPACITIES, "step_hours": STEP_HOURS, "split": SPLITS, "group_size": SIZES},
            "coarse_groups": COARSE_GROUPS,
            "slowdown": SLOWDOWN,
            "refined": {"capacity": REFINED_CAPACITIES, "step_hours": REFINED_HOURS},
            "steps": SHORT_STEPS,
            "seeds": seeds,
        },
        "loss": round(loss, 5),
        "simulated_targets": {name: round(value, 4) for name, value in values.items()},
        "best_points": [
            {
                "loss": round(point[0], 5),
                "capacity": round(point[1].capacity, 3),
                "step_hours": round(point[1].step_hours, 3),
                "split_share": point[1].split_share,
                "group_size": point[1].executions_per_group,
            }
            for point in sorted([*coarse, *fine], key=lambda point: point[0])[:10]
        ],
        "sensitivity": sensitivity(chosen, min(seeds, 3)),
    }


def main(path: Path = FIT_FILE) -> None:
    path.write_text(json.dumps(fit(), indent=2) + "\n")


if __name__ == "__main__":
    main()
