"""`gyre bench transition`: the control plane's share of a role change of an idle cell."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Literal

from rich.console import Console

from infra.settings.fleet import Fleet
from workers.bench.transition import figures, measure
from workers.cli.arguments import Positive
from workflows.messages.fleet import CellSpec


def bench(*, rounds: Positive = 5, engine: Literal["paced", "sglang"] = "paced", json_: bool = False) -> None:
    """Move an idle satellite to training and back.

    Parameters
    ----------
    rounds
        Moves in each direction that count.
    engine
        `paced` is the paced double; `sglang` the real engine.
    json_
        Print JSON alone.
    """
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as folder:
        fleet = Fleet(
            run="bench-transition", cells=tuple(CellSpec(index=index, engine=engine, slots=4) for index in range(2))
        )
        costs = asyncio.run(measure(fleet, Path(folder) / "run", rounds=rounds))
    result = {"engine": engine, "rounds": rounds, **figures(costs)}
    if json_:
        print(json.dumps(result))
    else:
        Console().print_json(data=result)
