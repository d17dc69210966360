"""`gyre bench simulate`: how long the simulator takes for a large comparison."""

import json

from rich.console import Console

from workers.bench.simulate import measure
from workers.cli.arguments import Positive


def bench(*, cells: Positive = 4, json_: bool = False) -> None:
    """Compare all policies over 48 steps on 192 nodes, the best split of the fixed ones searched.

    Parameters
    ----------
    cells
        Into how many cells the pool is cut.
    json_
        Print JSON alone.
    """
    report = measure(cells).model_dump(mode="json")
    if json_:
        print(json.dumps(report))
    else:
        Console().print_json(data=report)
