"""`gyre bench proxy`: what the proxy adds to the first token, and its CPU time beside two others'."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Literal

from rich.console import Console

from workers.bench.proxy.plan import BenchPlan
from workers.bench.proxy.run import measure
from workers.cli.arguments import Amount, Count, Positive


def bench(
    *,
    streams: Positive = 64,
    output_tokens: Positive = 256,
    tokens_per_second: Amount = 40.0,
    rounds: Count = 3,
    pairs: Count = 200,
    only: list[Literal["gyre", "litellm", "sglang-router"]] | None = None,
    json_: bool = False,
) -> None:
    """Measure our proxy, litellm's and sglang-router, each on one core, before the same paced engines.

    The other two are installed below `var/bench/` when they are missing.

    Parameters
    ----------
    streams
        Answers streamed at once.
    output_tokens
        Length of each answer.
    tokens_per_second
        Pace of each stream.
    rounds
        Rounds of each contestant that count; they take turns. 0 leaves that out.
    pairs
        Requests one at a time, for the time to the first token; 0 leaves that out.
    only
        Contestants to measure: gyre, litellm, sglang-router.
    json_
        Print JSON alone.
    """
    plan = BenchPlan(
        streams=streams,
        output_tokens=output_tokens,
        tokens_per_second=tokens_per_second,
        rounds=rounds,
        pairs=pairs,
        contestants=tuple(only) if only else BenchPlan.contestants,
    )
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as folder:
        result = asyncio.run(measure(plan, Path(folder), lambda text: progress.print(text, highlight=False)))
    if json_:
        print(json.dumps(result))
    else:
        Console().print_json(data=result)
