"""`gyre bench trajectories`: tokens a second and bytes a token from recorded calls to a trajectory."""

import json
import tempfile
from pathlib import Path

from rich.console import Console

from workers.bench.trajectories import TreeCost, exponent, measure
from workers.cli.arguments import Positive, require_place

SIZES = (125_000, 250_000, 500_000, 1_000_000, 2_000_000, 4_000_000)


def bench(*, rounds: Positive = 3, plot: Path | None = None, json_: bool = False) -> None:
    """Read, tree, select and harvest made-up executions of growing size, on one thread.

    Parameters
    ----------
    rounds
        How often each is done; the fastest counts.
    plot
        Write seconds over tokens to this file as a picture.
    json_
        Print JSON alone.
    """
    require_place(plot, "--plot")
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as folder:
        costs = [measure(size, Path(folder), rounds) for size in SIZES]
    result = {"exponent": round(exponent(costs), 3), "rows": [cost.figures() for cost in costs]}
    if plot is not None:
        draw(costs, plot)
    if json_:
        print(json.dumps(result))
    else:
        Console().print_json(data=result)


def draw(costs: list[TreeCost], path: Path) -> None:
    """Seconds over tokens, with the straight line from the origin through the largest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    tokens = [cost.tokens for cost in costs]
    for name, label in (("total_seconds", "rows to trajectory"), ("tree_seconds", "tree and selection alone")):
        seconds = [getattr(cost, name) for cost in costs]
        (line,) = axes.plot(tokens, seconds, "o", label=label)
        axes.plot([0, tokens[-1]], [0, seconds[-1]], "-", linewidth=0.8, color=line.get_color())
    axes.set_xlabel("tokens of one execution")
    axes.set_ylabel("seconds, one core")
    axes.set_title("From recorded calls to a trajectory: linear")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
