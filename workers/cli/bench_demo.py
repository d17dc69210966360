"""`gyre bench demo`: does training pay? The demo over several seeds, gains pooled over held-out tasks."""

import asyncio
import json
from pathlib import Path

from rich.console import Console

from infra.statistics import paired_interval
from workers.cli.arguments import Positive
from workers.demo.plan import DemoPlan
from workers.demo.run import DemoResult, run_demo
from workers.demo.summary import differences
from workers.supervisor.run_folder import CHECKOUT


def bench(*, seeds: Positive = 3, bursts: Positive = 4, out: Path | None = None, json_: bool = False) -> None:
    """Run the demo once a seed (tasks and sampling differ, the starting policy is the same) and pool the gains.

    Parameters
    ----------
    seeds
        How many, from 0.
    bursts
        Bursts of each campaign.
    out
        Where the runs are kept; `var/bench/demo` without it.
    json_
        Print JSON alone.
    """
    console = Console(stderr=json_)
    folder = out or CHECKOUT / "var" / "bench" / "demo"
    results = []
    for seed in range(seeds):
        console.rule(f"seed {seed}")
        plan = DemoPlan(seed=seed, bursts=bursts, greedy=False)
        results.append(asyncio.run(run_demo(plan, folder / f"seed-{seed}", console)))
    report = pooled(results)
    if json_:
        print(json.dumps(report))
    else:
        console.print_json(data=report)


def pooled(results: list[DemoResult]) -> dict[str, object]:
    """Gain over all (seed, held-out task) pairs with its 95% interval, and each seed's own."""
    found = [value for result in results for value in differences(result.before, result.after)]
    mean, low, high = paired_interval(found)
    return {
        "seeds": len(results),
        "pairs": len(found),
        "gain": round(mean, 4),
        "interval95": [round(low, 4), round(high, 4)],
        "before": [round(result.before.rate, 4) for result in results],
        "after": [round(result.after.rate, 4) for result in results],
        "loop_seconds": [result.summary["loop_seconds"] for result in results],
        "findings": sum(len(result.summary["audit_findings"]) for result in results),
    }
