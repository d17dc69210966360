"""`gyre demo`: the whole loop for real on this machine, with a table, a plot and a summary."""

import asyncio
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from workers.cli.arguments import Count, Positive
from workers.cli.up import say
from workers.demo.plan import DemoPlan
from workers.demo.run import DemoResult, run_demo
from workers.supervisor.run_folder import CHECKOUT

TROUBLE = ("died", "killed", "restarting")


def demo(
    *,
    out: Path | None = None,
    bursts: Positive = 4,
    steps: Positive = 2,
    heldout: Positive = 48,
    seed: Count = 0,
    greedy: bool = True,
) -> None:
    """Train a small real policy through real harness processes while cells change roles.

    Parameters
    ----------
    out
        Where everything goes; `var/demo` without it. An earlier run there is moved aside.
    bursts
        Bursts of the campaign.
    steps
        Updates of one burst.
    heldout
        Held-out tasks evaluated before and after.
    seed
        Seed of tasks and sampling.
    greedy
        Also evaluate greedily.
    """
    console = Console()
    plan = DemoPlan(bursts=bursts, steps=steps, heldout_tasks=heldout, seed=seed, greedy=greedy)
    result = asyncio.run(
        run_demo(
            plan,
            out or CHECKOUT / "var" / "demo",
            console,
            on_event=lambda event: say(console, event) if event.event in TROUBLE else None,
        )
    )
    report(console, result)


def report(console: Console, result: DemoResult) -> None:
    """The table at the end."""
    summary = result.summary
    table = Table(title="OpenGyre demo", show_header=False)
    for name, value in _rows(summary):
        table.add_row(name, value)
    console.print(table)
    console.print(f"summary  {result.summary_path}\npicture  {result.picture_path}", highlight=False, soft_wrap=True)


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    def rate(name: str) -> str:
        found = summary[name]
        low, high = found["interval95"]
        return f"{found['rate']:.3f}  [{low:.3f}, {high:.3f}]  {found['tasks']} tasks"

    gap, counts = summary["logprob_gap"], summary["executions"]
    rows = [
        ("pass rate before, sampled", rate("pass_rate_before")),
        ("pass rate after, sampled", rate("pass_rate_after")),
    ]
    if "greedy_before" in summary:
        rows += [("before, greedy", rate("greedy_before")), ("after, greedy", rate("greedy_after"))]
    changes = [change for change in summary["transitions"] if change["direction"] in ("to_training", "to_rollout")]
    rows += [
        ("updates", str(summary["updates"])),
        (
            "executions",
            f"{counts['dispatched']} dispatched, {counts['launched']} launched, {counts['finished']} finished",
        ),
        ("role changes", f"{len(changes)}, {summary['requests_moved']} requests moved in flight"),
        ("satellite joins", str(summary["satellite_joins"])),
        ("max w - capacity at a move", str(summary["max_w_minus_capacity"])),
        ("harness errors", str(summary["harness_errors"])),
        ("targets trained twice", str(summary["targets_trained_twice"])),
        ("version mismatches", str(summary["version_mismatches"])),
        ("log-prob gap, mean / 99.9%", f"{gap['mean'] or 0:.1e} / {gap['p999']:.1e}"),
        ("audit", "clean" if not summary["audit_findings"] else f"{len(summary['audit_findings'])} findings"),
        ("loop / wall", f"{summary['loop_seconds']:.0f} s / {summary['wall_seconds']:.0f} s"),
        ("peak memory", f"{summary['peak_pss_bytes'] / 1e9:.2f} GB"),
    ]
    return rows
