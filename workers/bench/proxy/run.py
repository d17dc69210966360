"""One whole measurement: engines and contestants up, first tokens one at a time, then rounds in turn."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.settings.run import Secrets
from workers.bench.proxy.contestants import Contestant, start_contestant
from workers.bench.proxy.engines import PacedOne, start_engine
from workers.bench.proxy.load import Round, first_tokens, run_round
from workers.bench.proxy.plan import BenchPlan, Cores
from workers.bench.proxy.report import figures

QUICK_TOKENS_PER_SECOND = 250.0
"""Pace of the engine that answers one request at a time: one token a tick of its timer (4 ms), so that the first token
comes alone."""


async def measure(plan: BenchPlan, folder: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Figures of `report`, with what they were taken under. `folder` must exist; logs and records stay in it.

    Raises InvalidInput with fewer than two cores, HarnessUnusable when a contestant cannot be installed, Transient
    when one does not start or breaks off an answer.
    """
    cores = Cores.of_this_machine()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.rest})
    try:
        plain, added = await _first(plan, _below(folder, "first"), cores, note)
        rounds = await _rounds(plan, _below(folder, "rounds"), cores, note)
    finally:
        os.sched_setaffinity(0, allowed)
    conditions = {
        "streams": plan.streams,
        "output_tokens": plan.output_tokens,
        "rounds": plan.rounds,
        "pairs": plan.pairs,
        "engine": "paced",
        "engine_tokens_per_second": plan.tokens_per_second,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }
    return {**figures(rounds, plain, added), **conditions}


async def _first(
    plan: BenchPlan, folder: Path, cores: Cores, note: Callable[[str], None]
) -> tuple[list[float], dict[str, list[float]]]:
    if plan.pairs == 0:
        return [], {}
    async with contextlib.AsyncExitStack() as stack:
        engines = await _engines(stack, plan, folder, cores, count=1, pace=QUICK_TOKENS_PER_SECOND)
        contestants = await _contestants(stack, plan, folder, engines, cores, note)
        note(f"first tokens, {plan.pairs} times each, one request at a time")
        return await first_tokens(plan, engines[0].chat, contestants)


async def _rounds(plan: BenchPlan, folder: Path, cores: Cores, note: Callable[[str], None]) -> list[Round]:
    rounds: list[Round] = []
    if plan.rounds == 0:
        return rounds
    async with contextlib.AsyncExitStack() as stack:
        engines = await _engines(stack, plan, folder, cores, count=plan.engines, pace=plan.tokens_per_second)
        contestants = await _contestants(stack, plan, folder, engines, cores, note)
        children = [engine.child for engine in engines]
        for number in range(-1, plan.rounds):  # the first one warms up and does not count
            for contestant in contestants:
                found = await run_round(plan, contestant, children, f"round/{number}/{contestant.name}")
                note(
                    f"round {number + 1}, {found.contestant}: {found.cpu_per_1k_tokens:.3f} CPU-s per 1,000 tokens, "
                    f"{found.tokens_per_second:.0f} tokens/s, engines' core {found.rest_busy:.0%} busy"
                )
                if number >= 0:
                    rounds.append(found)
    return rounds


async def _engines(
    stack: contextlib.AsyncExitStack, plan: BenchPlan, folder: Path, cores: Cores, *, count: int, pace: float
) -> list[PacedOne]:
    key = Secrets.of(folder, create=True).admin_key
    slots = plan.streams  # one that sends all to one engine is not made to wait there
    engines: list[PacedOne] = []
    for number in range(count):
        engine = await start_engine(
            folder, f"engine-{number}", core=cores.rest, tokens_per_second=pace, slots=slots, admin_key=key
        )
        stack.callback(engine.child.stop)
        engines.append(engine)
    return engines


async def _contestants(
    stack: contextlib.AsyncExitStack,
    plan: BenchPlan,
    folder: Path,
    engines: list[PacedOne],
    cores: Cores,
    note: Callable[[str], None],
) -> list[Contestant]:
    contestants: list[Contestant] = []
    for name in plan.contestants:
        note(f"starting {name}")
        contestant = await start_contestant(name, folder, engines, core=cores.contestant, streams=plan.streams)
        stack.callback(contestant.child.stop)
        contestants.append(contestant)
    return contestants


def _below(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path
