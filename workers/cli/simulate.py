"""`gyre simulate`: what the scheduling policies would do with a workload, before or after a GPU is spent."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from infra.records.database import open_database
from infra.simulator.compare import Compared, ablation, compare
from infra.simulator.paper import Laboratory, Row, hours_of, load_fit, orders_of, rows_of, runs_of, spreads_of
from infra.simulator.picture import draw
from infra.simulator.recorded import RecordedRun, read_run
from infra.simulator.scenario import Scenario, load_scenario
from workers.cli.arguments import Count, require_place
from workers.cli.progress import progress
from workers.cli.runs import find_run
from workflows.messages.errors import InvalidInput

PAPER_SEEDS = 3
SPREAD_SEEDS = 1


def simulate(
    scenario: Path | None = None,
    /,
    *,
    from_run: Path | None = None,
    paper: bool = False,
    ablate: bool = False,
    seed: Count | None = None,
    plot: Path | None = None,
    json_: bool = False,
) -> None:
    """Compare the policies on a scenario, a recorded run, or the published settings.

    Parameters
    ----------
    scenario
        Scenario file (TOML or JSON); without it the default one.
    from_run
        Folder (or name) of a run: its recorded executions under every policy.
    paper
        The published comparisons: published and simulated ratios.
    ablate
        Every policy also without streaming, and with each burst shuffled as a whole.
    seed
        Another seed than the scenario's.
    plot
        Write the cells' roles over time to this PNG.
    json_
        Print JSON alone.
    """
    if paper:
        if scenario or from_run or ablate or plot or seed is not None:
            raise InvalidInput("stands alone: its settings are the published ones", field="--paper")
        _paper(json_)
        return
    if scenario and from_run:
        raise InvalidInput("a scenario file and a recorded run exclude each other", field="--from-run")
    require_place(plot, "--plot")
    recorded = _recorded(from_run) if from_run else None
    chosen = recorded.scenario if recorded else load_scenario(scenario) if scenario else Scenario()
    if seed is not None:
        chosen = chosen.model_copy(update={"seed": seed})
    chosen = ablation(chosen) if ablate else chosen
    count, total = itertools.count(1), len(chosen.variants)
    with progress(chosen.name, total, hidden=json_) as tell:
        workload = recorded.workload if recorded else None
        results = compare(chosen, workload, lambda label: tell(label, next(count), total))
    if plot:
        draw(results, plot, chosen.name)
    report = report_of(chosen, results, recorded)
    if json_:
        print(json.dumps(report))
        return
    console = Console()
    console.print(_table(chosen, results, recorded))
    if plot:
        console.print(f"roles over time: {plot}")


def report_of(scenario: Scenario, results: Sequence[Compared], recorded: RecordedRun | None) -> dict[str, Any]:
    """What `--json` prints: one object a variant, ratios to the fastest."""
    fastest = min(result.outcome.seconds for result in results)
    report: dict[str, Any] = {
        "scenario": scenario.model_dump(mode="json", exclude={"variants"}),
        "variants": [
            {
                **result.outcome.model_dump(mode="json", exclude={"steps"}),
                "hours": result.outcome.hours,
                "relative": result.outcome.seconds / fastest,
                "steps": [step.model_dump(mode="json") for step in result.outcome.steps],
            }
            for result in results
        ],
    }
    if recorded:
        report["recorded"] = {"seconds": recorded.seconds, "groups": recorded.groups}
    return report


def _recorded(which: Path) -> RecordedRun:
    manifest = find_run(which, field="--from-run")
    engine = open_database(manifest.database_url)
    try:
        return read_run(engine, manifest.fleet)
    finally:
        engine.dispose()


def _table(scenario: Scenario, results: Sequence[Compared], recorded: RecordedRun | None) -> Table:
    fastest = min(result.outcome.seconds for result in results)
    title = f"{scenario.name}: {scenario.steps} steps, {scenario.cells} cells, staleness {scenario.staleness:g}"
    if recorded:
        title += f"; recorded: {recorded.seconds:.0f} s"
    table = Table(
        title=title,
        title_justify="left",
        caption="ratio: to the fastest; age: measured staleness, in versions; T, R: idle share of time in training, "
        "of rollout slots; moves: role changes of cells; moved: requests that changed the cell; split: fixed training "
        "cells",
        caption_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in ("policy", "time", "ratio", "age", "T", "R", "moves", "moved", "split"):
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    for result in results:
        out = result.outcome
        table.add_row(
            out.label,
            _duration(out.seconds),
            f"{out.seconds / fastest:.2f}x",
            f"{out.staleness:.2f}",
            f"{out.training_idle_share:.0%}",
            f"{out.rollout_idle_share:.0%}",
            str(out.moves),
            str(out.rerouted),
            str(out.split) if out.policy in ("async", "lending") else "",
        )
    return table


def _duration(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds:.1f} s"
    hours = seconds / 3600
    return f"{hours:.2f} h" if hours < 100 else f"{hours:.0f} h"


def _paper(json_: bool) -> None:
    fit, record = load_fit()
    laboratory = Laboratory(fit, PAPER_SEEDS)
    count, total = itertools.count(1), runs_of(PAPER_SEEDS, SPREAD_SEEDS)
    with progress("published settings", total, hidden=json_) as tell:
        laboratory.progress = lambda text: tell(text, next(count), total)
        rows, orders = rows_of(laboratory), orders_of(laboratory)
        hours, spreads = hours_of(laboratory), spreads_of(laboratory.with_seeds(SPREAD_SEEDS))
    missed = [row.name for row in rows if not row.met]
    report = {
        "rows": [row.model_dump() for row in rows],
        "orders": orders,
        "hours": hours,
        "spreads": spreads,
        "fit": fit.model_dump(),
        "missed": missed,
        "sensitivity": record["sensitivity"],
    }
    if json_:
        print(json.dumps(report))
        return
    console = Console()
    console.print(_paper_table(rows))
    for name, right in orders.items():
        console.print(f"{'[green]right' if right else '[red]wrong'}[/]  {name}")
    console.print(_hours_table(hours))
    console.print(_spread_table(spreads))
    console.print(_sensitivity_table(record["sensitivity"]))


def _paper_table(rows: Sequence[Row]) -> Table:
    table = Table(title="published and simulated", title_justify="left")
    for column in ("", "published", "simulated", "error", "", ""):
        table.add_column(column, justify="right" if column in ("published", "simulated", "error") else "left")
    for row in rows:
        kind = "fitted" if row.fitted else "predicted"
        mark = "" if row.met else "[red]outside its bar[/]"
        table.add_row(
            row.name, f"{row.published:.4g}", f"{row.simulated:.4g}", f"{row.error:+.1%}", kind, f"{row.note} {mark}"
        )
    return table


def _hours_table(hours: dict[str, dict[str, float]]) -> Table:
    table = Table("", "published", "simulated", title="2.4T, 48 steps, hours", title_justify="left")
    for name, values in hours.items():
        table.add_row(name, f"{values['published']:.2f}", f"{values['simulated']:.2f}")
    return table


def _spread_table(spreads: Sequence[dict[str, float]]) -> Table:
    title = "DeepSWE, TerminalBench: durations (1: NL2RepoBench) against ratios; published 1.38-1.57 and 1.61-1.85"
    table = Table("mean", "spread", "Async", "Colocate", title=title, title_justify="left")
    for row in spreads:
        table.add_row(f"{row['mean']:g}", f"{row['spread']:g}", f"{row['async']:.2f}", f"{row['colocate']:.2f}")
    return table


def _sensitivity_table(sensitivity: dict[str, dict[str, float]]) -> Table:
    names = list(next(iter(sensitivity.values())))
    table = Table("changed, nothing fitted again", *names, title="predicted rows", title_justify="left")
    for change, values in sensitivity.items():
        table.add_row(change, *(f"{values[name]:.3f}" for name in names))
    return table
