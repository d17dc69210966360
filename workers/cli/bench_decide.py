"""`gyre bench decide`: what a scheduling decision costs."""

import json

from rich.console import Console
from rich.table import Table

from workers.bench.decide import measure
from workers.cli.arguments import Positive, Positives


def bench(
    *,
    cells: Positive = 64,
    executions: Positive = 10_000,
    gpus: Positives = (128, 1024),
    calls: Positive = 500,
    json_: bool = False,
) -> None:
    """Time one decision of every policy, and the throughput policy's plan.

    Parameters
    ----------
    cells
        Cells of the fleet that decides.
    executions
        Executions in its books.
    gpus
        Pool sizes for the plan, one GPU a unit.
    calls
        How often each is timed.
    json_
        Print JSON alone.
    """
    report = measure(cells, executions, gpus, calls)
    if json_:
        print(json.dumps(report.model_dump(mode="json")))
        return
    table = Table("", "median ms", "99% ms", title=f"{cells} cells, {executions} executions", title_justify="left")
    lines = [(f"decision, {name}", timing) for name, timing in report.decisions.items()]
    lines += [(f"plan, {count} GPUs", timing) for count, timing in report.plans.items()]
    lines += [(f"search, {count} GPUs", timing) for count, timing in report.searches.items()]
    for name, timing in lines:
        table.add_row(name, f"{timing.median_ms:.3f}", f"{timing.p99_ms:.3f}")
    Console().print(table)
