"""`gyre bench schedulers`: the policies side by side on a real stack with paced engines and trainers."""

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from workers.bench.schedulers.compare import DEFAULT_POLICIES, PARTS, again, compare
from workers.cli.arguments import Positive
from workers.supervisor.run_folder import CHECKOUT
from workflows.messages.errors import InvalidInput


def bench(
    part: Literal["heavy-tailed", "published-batch", "nl2repobench", "two-phases", "two-phases-noisy"] = "heavy-tailed",
    *,
    policies: list[str] | None = None,
    seeds: list[int] | None = None,
    split: Positive | None = None,
    slower: float = 1.0,
    out: Path | None = None,
    resume: bool = False,
    from_: Path | None = None,
    json_: bool = False,
) -> None:
    """Run the same executions under each policy and set the simulator's predictions beside them.

    Parameters
    ----------
    part
        `heavy-tailed`, `published-batch` (16 groups a step), `nl2repobench`: waterlevel against async and
        colocate. `two-phases`: throughput against async. `two-phases-noisy`: throughput, with everything that is
        measured off by 30%.
    policies
        Which ones; all of the part without it.
    seeds
        Which workload files; all of the part without it.
    split
        Training cells of async; the best one is searched without it.
    slower
        How many times as long all that takes time shall take: executions, answers, training. What the control plane
        costs stays what it is, so a small machine comes nearer to hours.
    out
        Where each run's records and figures are kept as it ends, and the report so far; `var/bench/schedulers`
        without it.
    resume
        Take over runs that are there already.
    from_
        Run nothing: predict and report anew from what was kept there.
    json_
        Print JSON alone.
    """
    if from_:
        if out or resume or split or slower != 1:
            raise InvalidInput("nothing is run: --out, --resume, --split and --slower have no meaning", field="--from")
        result = again(PARTS[part], from_, policies=policies or (), seeds=seeds or ())
    else:
        progress = Console(stderr=True)
        result = asyncio.run(
            compare(
                PARTS[part],
                out or CHECKOUT / "var" / "bench" / "schedulers",
                lambda text: progress.print(text, highlight=False, markup=False),
                policies=policies or DEFAULT_POLICIES[part],
                seeds=seeds or (),
                split=split,
                slower=slower,
                resume=resume,
            )
        )
    if json_:
        print(json.dumps(result))
    else:
        show(result, Console())


def show(result: dict[str, Any], console: Console) -> None:
    """The rows and the bars as tables."""
    table = Table(
        *("run", "seconds", "ratio", "simulated", "error", escape("E[d]"), "moves", "busy"),
        title=f"{result['part']}: {result['note']}",
        title_justify="left",
    )
    for row in result["rows"]:
        split = f" ({row['split']} train)" if row["split"] else ""
        table.add_row(
            f"{row['name']}{split}",
            f"{row['seconds']:.1f}",
            _number(row["ratio"], ".3f"),
            _number(row["simulated"], ".1f"),
            _number(row["error"], "+.1%"),
            f"{row['staleness']:.2f}",
            str(row["moves"]),
            f"{row['busy_share']:.0%}",
        )
    console.print(table)
    for row in result["rows"]:
        for word in filter(None, (row["note"], row["remark"])):
            console.print(f"{row['name']}: {word}", markup=False)
    for bar in result["bars"]:
        verdict = {True: "met", False: "MISSED", None: "no verdict"}[bar["met"]]
        console.print(f"{verdict}: {bar['name']} {bar['value']} ({bar['bar']})", highlight=False, markup=False)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
