"""The files people write: examples, JSON schemas, and a check that names every wrong field."""

import json
import sys
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from activities.tasks import HARNESSES
from harness_adapters.registry import adapter_named
from infra.settings.fleet import Fleet, load_fleet
from infra.settings.spelling import problem_text
from infra.weights.folder import require_model
from workers.supervisor.run_folder import CHECKOUT
from workflows.messages.burst import BurstSpec, CampaignSpec, HarnessChoice
from workflows.messages.errors import HarnessUnusable, InvalidSpec

Spec = TypeVar("Spec", bound=BaseModel)

EXAMPLE_TASKS = "demo"
"""Task set that the examples name."""


def parse(model: type[Spec], path: Path) -> Spec:
    """Read a JSON file. Raises InvalidSpec naming each wrong field, one a line."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InvalidSpec(f"no such file: {path}") from None
    except ValidationError as error:
        raise InvalidSpec(problem_text(model, error, path)) from None


def burst_example(
    *,
    run: str = "local",
    name: str = "first",
    tasks: str = EXAMPLE_TASKS,
    steps: int | None = None,
    groups: int | None = None,
    executions: int | None = None,
    harness: str | None = None,
) -> None:
    """Print a valid burst file with every setting and its default.

    Parameters
    ----------
    run
        Name of the run it is for.
    name
        Name of the burst; each name once in a run.
    tasks
        Task set: a name of the fleet file, or a folder.
    steps
        Updates it makes (`steps`).
    groups
        Groups an update takes (`groups_per_step`).
    executions
        Executions a group has (`executions_per_group`).
    harness
        Name of the harness, as `gyre harness list` shows it.
    """
    given = {"steps": steps, "groups_per_step": groups, "executions_per_group": executions}
    chosen = {field: value for field, value in given.items() if value is not None}
    choice = {} if harness is None else {"harness": HarnessChoice(name=adapter_named(harness).name)}
    written = {"run": run, "name": name, "tasks": tasks, **chosen, **choice}
    try:
        print(BurstSpec.model_validate(written).model_dump_json(indent=2))
    except ValidationError as error:
        raise InvalidSpec(problem_text(BurstSpec, error)) from None


def burst_schema() -> None:
    print(json.dumps(BurstSpec.model_json_schema(), indent=2))


def burst_check(file: Path, /) -> None:
    spec = parse(BurstSpec, file)
    _check_harness(spec.harness)
    executions = spec.quota * spec.executions_per_group
    print(f"{file}: ok; burst {spec.name} of run {spec.run}: up to {spec.quota} groups, {executions} executions")


def campaign_example(*, run: str = "local", name: str = "campaign", tasks: str = EXAMPLE_TASKS) -> None:
    """Print a valid campaign file with every setting and its default."""
    burst = BurstSpec(run=run, name=name, tasks=tasks)
    print(CampaignSpec(run=run, name=name, bursts=6, burst=burst).model_dump_json(indent=2))


def campaign_schema() -> None:
    print(json.dumps(CampaignSpec.model_json_schema(), indent=2))


def campaign_check(file: Path, /) -> None:
    spec = parse(CampaignSpec, file)
    _check_harness(spec.burst.harness)
    print(f"{file}: ok; campaign {spec.name} of run {spec.run}: {spec.bursts} bursts")


def fleet_example() -> None:
    """Print the default fleet as a fleet file."""
    print("# OpenGyre fleet: what `gyre up --fleet FILE` starts. Every line is optional; these are the defaults.")
    print(fleet_toml(Fleet()), end="")


def fleet_check(file: Path, /) -> None:
    fleet = load_fleet(file)
    require_model(CHECKOUT / fleet.model)
    print(f"{file}: ok; run {fleet.run}, {len(fleet.cells)} cells")


def fleet_toml(fleet: Fleet) -> str:
    """`fleet` as TOML, with each field's description beside it."""
    values, tables = [], []
    for name, value in fleet:
        if name == "cells":
            tables += [f"\n[[cells]]\n{_toml_table(cell)}" for cell in value]
        elif isinstance(value, BaseModel):
            tables.append(f"\n[{name}]\n{_toml_table(value)}")
        elif isinstance(value, dict):
            lines = "".join(f"{json.dumps(key)} = {json.dumps(item)}\n" for key, item in value.items())
            tables.append(f"\n[{name}]\n{lines}")
        else:
            values.append(_toml_line(fleet, name))
    return "".join(values + tables)


def _toml_table(model: BaseModel) -> str:
    return "".join(_toml_line(model, name) for name in type(model).model_fields)


def _toml_line(model: BaseModel, name: str) -> str:
    note = type(model).model_fields[name].description
    if getattr(model, name) is None:  # TOML has no such value
        return f"# {name} =  # {f'{note}; ' if note else ''}left out: no limit\n"
    return f"{name} = {json.dumps(getattr(model, name))}{f'  # {note}' if note else ''}\n"


def _check_harness(choice: HarnessChoice) -> None:
    """Raises InvalidSpec for an unknown harness or a wrong setting; one that is missing here may be there elsewhere."""
    adapter = adapter_named(choice.name)
    try:
        adapter.check(choice, CHECKOUT / HARNESSES)
    except HarnessUnusable as error:
        print(f"note: harness.name: {error}; gyre harness install {choice.name}", file=sys.stderr)
