"""The two loads: many streams at once, and one request at a time."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from workers.bench.proxy.caller import Caller, Heard, Target
from workers.bench.proxy.child import Child
from workers.bench.proxy.contestants import Contestant
from workers.bench.proxy.plan import BenchPlan
from workflows.messages.errors import Transient

FIRST_TOKENS = 8
"""Length of an answer that is only asked for its first token."""

WARM_UP = 10
"""Pairs that open connections and do not count."""

_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Round:
    """One contestant, all streams at once. `cpu_seconds` are its own; `rest_busy` is the share of the other core that
    engines and load used."""

    contestant: str
    tokens: int
    seconds: float
    cpu_seconds: float
    rest_busy: float
    pieces: int
    prompt_tokens: int

    @property
    def cpu_per_1k_tokens(self) -> float:
        return 1000 * self.cpu_seconds / self.tokens

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


async def run_round(plan: BenchPlan, contestant: Contestant, engines: Sequence[Child], label: str) -> Round:
    """All streams of one round. Raises Transient when an answer is not exactly as long as it was asked to be."""
    callers = [Caller(contestant.target(stream)) for stream in range(plan.streams)]
    bodies = [plan.body(f"{label}/{stream}", plan.output_tokens) for stream in range(plan.streams)]
    rest_before = sum(engine.cpu_seconds() for engine in engines) + time.process_time()
    own_before, started = contestant.child.cpu_seconds(), time.perf_counter()
    asked = (caller.ask(body, seconds=_PATIENCE_SECONDS) for caller, body in zip(callers, bodies, strict=True))
    try:
        heard = await asyncio.gather(*asked)
    finally:
        for caller in callers:
            caller.close()
    seconds = time.perf_counter() - started
    own = contestant.child.cpu_seconds() - own_before
    rest = sum(engine.cpu_seconds() for engine in engines) + time.process_time() - rest_before
    for answer in heard:
        _check(answer, plan.output_tokens, contestant.name)
    return Round(
        contestant=contestant.name,
        tokens=sum(answer.output_tokens for answer in heard),
        seconds=seconds,
        cpu_seconds=own,
        rest_busy=rest / seconds,
        pieces=sum(answer.pieces for answer in heard),
        prompt_tokens=heard[0].prompt_tokens,
    )


async def first_tokens(
    plan: BenchPlan, direct: Target, contestants: Sequence[Contestant]
) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds to the first token, direct, and what each contestant added to the direct one next to it.

    Each contestant has direct requests of its own, before and after it in turn: who is asked first finds the engine
    longer asleep.
    """
    plain: list[float] = []
    added: dict[str, list[float]] = {each.name: [] for each in contestants}
    straight = Caller(direct)
    callers = {each.name: Caller(each.target(0)) for each in contestants}

    async def first(name: str, caller: Caller, pair: str) -> float:
        heard = await caller.ask(plan.body(f"first/{pair}", FIRST_TOKENS), seconds=_PATIENCE_SECONDS)
        _check(heard, FIRST_TOKENS, name)
        return heard.first_seconds

    try:
        for number in range(-WARM_UP, plan.pairs):
            for name, caller in callers.items():
                both = [("the engine", straight), (name, caller)]
                heard = {
                    who: await first(who, asked, f"{number}/{name}/{who}")
                    for who, asked in (both if number % 2 else reversed(both))
                }
                if number >= 0:
                    plain.append(heard["the engine"])
                    added[name].append(heard[name] - heard["the engine"])
    finally:
        for caller in (straight, *callers.values()):
            caller.close()
    return plain, added


def _check(answer: Heard, tokens: int, name: str) -> None:
    if answer.output_tokens != tokens or answer.finish != "length":
        raise Transient(f"{name} gave {answer.output_tokens} tokens ({answer.finish}) where {tokens} were asked for")
