"""``python -m workers.bench.schedulers.draw``: writes the workload files. Seeded; run once, before any measurement.

Why the numbers are what they are: `docs/decisions/0085-live-comparison-workload.md`. Durations are stratified: every
seed has the same quantiles of the published shape, and only which execution gets which differs, because so few draws
would otherwise compare the luck of the longest one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean

from infra.simulator.paper import load_fit
from infra.simulator.shape import Shape, shape_of
from workers.bench.schedulers.workload import FILES, TEMPLATE_TOKENS, Execution, Turn, Workload, save_workload

SEEDS = (0, 1, 2)
MEAN_HOURS, LONGEST_HOURS, LONG_SHARE = 1.93, 2.96, 0.0951
"""Published of 122B on NL2RepoBench: an execution, a query's longest, queries at 4 h or more."""
MODEL_SHARE = 0.6
"""Of an execution's time; not published, the simulator's default."""
TOKENS_PER_SECOND, TURN_SECONDS, ASKED_TOKENS = 20.0, 6.0, 24
PHASE_TRAINING_RATE = 1000.0
NOISE = 0.3


@dataclass(frozen=True)
class Phase:
    """Means of an execution: seconds of rollout, and seconds of one cell that it is trained for."""

    seconds: float
    training_seconds: float


PHASES = (Phase(10.0, 1 / 6), Phase(1.0, 8 / 6))
"""The simulator's two phases (30 minutes and 1 minute a step; a tenth and eight times that), 180 s to the second."""


def heavy_tailed(seed: int) -> Workload:
    """What the simulator reads into the published DeepSWE and TerminalBench ratios, at E[d] = 1: a quarter of
    NL2RepoBench's mean, twice its spread."""
    return published("heavy-tailed", seed, mean_hours=MEAN_HOURS / 4, spread=2.0, hour_seconds=36.0)


def published_batch(seed: int) -> Workload:
    """The same with the published batch: where a micro-step is a whole execution, a batch of four groups is coarse."""
    return published(
        "published-batch",
        seed,
        mean_hours=MEAN_HOURS / 4,
        spread=2.0,
        hour_seconds=72.0,
        groups_per_step=16,
        turn_seconds=2 * TURN_SECONDS,
    )


def nl2repobench(seed: int) -> Workload:
    """The published 122B setting on NL2RepoBench at E[d] = 1, as it was fitted."""
    return published("nl2repobench", seed, mean_hours=MEAN_HOURS, spread=1.0, hour_seconds=12.0)


def published(
    name: str,
    seed: int,
    *,
    mean_hours: float,
    spread: float,
    hour_seconds: float,
    groups_per_step: int = 4,
    turn_seconds: float = TURN_SECONDS,
) -> Workload:
    """The 122B setting, by default with a quarter of its groups a step; an hour takes `hour_seconds`."""
    fit, _ = load_fit()
    cells, size, steps = 8, fit.executions_per_group, 3
    shape = shape_of(size, MEAN_HOURS, LONGEST_HOURS, LONG_SHARE)
    wide = Shape(query_sigma=shape.query_sigma * spread, execution_sigma=shape.execution_sigma * spread)
    random = Random(f"{name}/{seed}")
    factors = stratified(random, groups_per_step * steps, size, wide)
    seconds = mean_hours * hour_seconds
    groups = [[execution(random, seconds * factor, turn_seconds=turn_seconds) for factor in group] for group in factors]
    per_execution = fit.step_hours * hour_seconds * cells / (groups_per_step * size)
    return Workload(
        name=name,
        about=f"mean {mean_hours:.3g} h, spread {spread:g} of NL2RepoBench's; an hour takes {hour_seconds:g} s",
        seed=seed,
        cells=cells,
        slots=round(fit.capacity * groups_per_step * size / cells),
        groups_per_step=groups_per_step,
        executions_per_group=size,
        steps=steps,
        tokens_per_second=TOKENS_PER_SECOND,
        training_tokens_per_second=round(fmean(one.tokens for group in groups for one in group) / per_execution, 1),
        groups=tuple(rewarded(group) for group in groups),
    )


def two_phases(seed: int, *, noise: float = 0.0) -> Workload:
    """Long rollouts with light training, then short ones with heavy training; an execution of a step for every slot.

    With `noise` durations and training of every update are off by a log-normal factor of that width, each its own: so
    whatever is measured is.
    """
    cells, groups_per_step, size, updates = 8, 8, 2, 30
    random = Random(f"two-phases/{seed}")
    shape = Shape(query_sigma=0.2, execution_sigma=0.3)
    groups: list[tuple[Execution, ...]] = []
    for phase in PHASES:
        factors = stratified(random, groups_per_step * updates, size, shape)
        blur = [[math.exp(noise * random.gauss(0, 1)) for _ in range(2)] for _ in range(updates)]
        for index, group in enumerate(factors):
            longer, heavier = blur[index // groups_per_step]
            groups.append(rewarded([_phased(random, phase, factor * longer, factor * heavier) for factor in group]))
    return Workload(
        name="two-phases-noisy" if noise else "two-phases",
        about="long rollouts, then a training-bound phase" + (f"; {noise:.0%} noise by update" if noise else ""),
        seed=seed,
        cells=cells,
        slots=groups_per_step * size // cells,
        groups_per_step=groups_per_step,
        executions_per_group=size,
        steps=1,
        bursts=len(PHASES) * updates,
        carry_over=1.0,
        tokens_per_second=TOKENS_PER_SECOND,
        training_tokens_per_second=PHASE_TRAINING_RATE,
        phases=(updates,),
        groups=tuple(groups),
    )


def _phased(random: Random, phase: Phase, longer: float, heavier: float) -> Execution:
    """An execution whose messages bring the tokens that its training time takes."""
    plain = execution(random, phase.seconds * longer, asked=1)
    wanted = phase.training_seconds * heavier * PHASE_TRAINING_RATE
    spoken = sum(turn.answer + TEMPLATE_TOKENS for turn in plain.turns)
    asked = max(1, round((wanted - spoken) / len(plain.turns)))
    return plain.model_copy(update={"turns": tuple(t.model_copy(update={"asked": asked}) for t in plain.turns)})


def stratified(random: Random, groups: int, size: int, shape: Shape) -> list[list[float]]:
    """[groups][size] factors of mean 1: every quantile of the query's and of the execution's shape once, shuffled."""
    queries, own = quantiles(random, groups), quantiles(random, groups * size)
    factors = [
        [math.exp(shape.query_sigma * q + shape.execution_sigma * own[group * size + member]) for member in range(size)]
        for group, q in enumerate(queries)
    ]
    mean = fmean(factor for group in factors for factor in group)
    return [[factor / mean for factor in group] for group in factors]


def quantiles(random: Random, count: int) -> list[float]:
    """The middles of `count` equal strata of the standard normal, in random order."""
    found = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
    random.shuffle(found)
    return found


def execution(
    random: Random, seconds: float, *, asked: int = ASKED_TOKENS, turn_seconds: float = TURN_SECONDS
) -> Execution:
    """An execution of `seconds`, in turns of about `turn_seconds` whose shares vary; `reward` comes later."""
    shares = [random.uniform(0.5, 1.5) for _ in range(max(1, round(seconds / turn_seconds)))]
    turns = []
    for share in shares:
        mine = seconds * share / sum(shares)
        answer = max(2, round(MODEL_SHARE * mine * TOKENS_PER_SECOND))
        tool = max(0.0, mine - answer / TOKENS_PER_SECOND)
        turns.append(Turn(asked=asked, answer=answer, tool_seconds=round(tool, 3)))
    return Execution(turns=tuple(turns), reward=0.0)


def rewarded(group: Sequence[Execution]) -> tuple[Execution, ...]:
    """Every other execution of a group succeeds, so that every group is trained."""
    return tuple(one.model_copy(update={"reward": float(member % 2)}) for member, one in enumerate(group))


def main() -> None:
    for seed in SEEDS:
        for workload in (heavy_tailed(seed), published_batch(seed), nl2repobench(seed)):
            save_workload(FILES / f"{workload.name}-{seed}.json", workload)
    for workload in (two_phases(0), two_phases(0, noise=NOISE)):
        save_workload(FILES / f"{workload.name}-0.json", workload)


if __name__ == "__main__":
    main()
