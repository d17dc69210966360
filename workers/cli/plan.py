"""`gyre plan`: how many cells, which split, slots, B, N, mu and phi for a budget, and how sure that is."""

import json
import tomllib
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from infra.settings.spelling import problem_text
from infra.simulator.plan import Finalist, PlanReport, Search
from infra.simulator.plan import plan as search_plan
from infra.simulator.scenario import Scenario, load_scenario
from workers.cli.arguments import Amount, Positive
from workers.cli.progress import progress
from workflows.messages.errors import InvalidSpec


def plan(
    scenario: Path | None = None,
    /,
    *,
    search: Path | None = None,
    hours: Amount | None = None,
    nodes: int | None = None,
    trials: Positive | None = None,
    json_: bool = False,
) -> None:
    """Search the set-ups of a scenario for the one that trains its executions soonest.

    Parameters
    ----------
    scenario
        Scenario file (TOML or JSON) with the workload and the pool; without it the default one.
    search
        TOML file with the choices; without it a small set of them.
    hours
        Budget: wall hours. Says how many optimizer steps fit.
    nodes
        Another pool size: slots and training speed scale with it.
    trials
        Candidates simulated at most.
    json_
        Print JSON alone.
    """
    base = load_scenario(scenario) if scenario else Scenario()
    if nodes is not None:
        base = resized(base, nodes)
    choices = load_search(search) if search else Search()
    if trials is not None:
        choices = Search.model_validate({**choices.model_dump(), "trials": trials})
    with progress("simulating set-ups", None, hidden=json_) as tell:
        report = search_plan(base, choices, lambda done, total: tell("simulating set-ups", done, total))
    affordable = None if hours is None else int(hours / (report.hours / report.steps))
    if json_:
        print(json.dumps({**report.model_dump(mode="json"), "steps_in_budget": affordable}))
        return
    console = Console()
    console.print(_table(report))
    console.print(
        f"{report.hours:.1f} h, {report.node_hours:.0f} node-hours for {report.steps} steps. The best beats the "
        f"runner-up in {report.confidence:.0%} of the seeds, by {report.gain_over_runner_up:.1%} on average "
        f"({report.trials} of {report.possible} possible set-ups were simulated)."
    )
    if affordable is not None:
        console.print(f"{affordable} optimizer steps fit into {hours:g} h.")


def load_search(path: Path) -> Search:
    """Read the choices. Raises InvalidSpec naming each wrong field."""
    try:
        return Search.model_validate(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise InvalidSpec(f"no such search file: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise InvalidSpec(problem_text(Search, error, path)) from None


def resized(base: Scenario, nodes: int) -> Scenario:
    """The same workload on another number of nodes: slots grow with them, training gets faster with them.

    Raises InvalidSpec when there are no nodes.
    """
    if nodes < 1:
        raise InvalidSpec("must be at least 1", field="--nodes")
    share = nodes / base.nodes
    engines = base.engines.model_copy(update={"slots": max(1, round(base.engines.slots * share))})
    training = base.training.model_copy(update={"step_seconds": base.training.step_seconds / share})
    return base.model_copy(update={"nodes": nodes, "engines": engines, "training": training})


def _table(report: PlanReport) -> Table:
    table = Table(title="best set-ups: hours per 1,000 executions trained", title_justify="left", padding=(0, 0))
    columns = ("policy", "cells", "split", "slots", "B", "N", "mu", "phi", "h/1,000", "±", "idle T", "R")
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    for one in (report.best, *report.others):
        table.add_row(*_cells(one))
    return table


def _cells(one: Finalist) -> tuple[str, ...]:
    return (
        one.policy,
        str(one.cells),
        str(one.split) if one.policy in ("async", "lending") else "",
        str(one.slots),
        str(one.groups_per_step),
        str(one.executions_per_group),
        str(one.burst_steps),
        f"{one.carry_over:g}",
        f"{one.hours_per_thousand:.4g}",
        f"{one.spread:.2g}",
        f"{one.training_idle_share:.0%}",
        f"{one.rollout_idle_share:.0%}",
    )
