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

FIRST_TOKENS = 4
"""Length of an answer that is only asked for its first token."""

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
    """Seconds to the first token, direct, and what each contestant added to the direct one right before it."""
    callers = {"": Caller(direct), **{each.name: Caller(each.target(0)) for each in contestants}}
    plain: list[float] = []
    added: dict[str, list[float]] = {each.name: [] for each in contestants}
    try:
        for pair in range(-10, plan.pairs):  # the first ones open connections and do not count
            heard: dict[str, float] = {}
            for name, caller in callers.items():
                body = plan.body(f"first/{pair}/{name}", FIRST_TOKENS)
                answer = await caller.ask(body, seconds=_PATIENCE_SECONDS)
                _check(answer, FIRST_TOKENS, name or "the engine")
                heard[name] = answer.first_seconds
            if pair >= 0:
                plain.append(heard[""])
                for name, list_ in added.items():
                    list_.append(heard[name] - heard[""])
    finally:
        for caller in callers.values():
            caller.close()
    return plain, added


def _check(answer: Heard, tokens: int, name: str) -> None:
    if answer.output_tokens != tokens or answer.finish != "length":
        raise Transient(f"{name} gave {answer.output_tokens} tokens ({answer.finish}) where {tokens} were asked for")
