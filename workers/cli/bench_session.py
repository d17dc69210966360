"""`gyre bench session`: what a session of hundreds of calls and hundreds of thousands of tokens costs the proxy."""

import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from workers.bench.session import SessionCost, default_tokenizer, measure
from workers.cli.arguments import Positive, require_place
from workflows.messages.errors import InvalidInput


def bench(
    *,
    calls: Positive = 636,
    tokens: Positive = 700_000,
    model: Path | None = None,
    plot: Path | None = None,
    json_: bool = False,
) -> None:
    """Read, encode and record every call of a made-up session, on one thread.

    Parameters
    ----------
    calls
        Calls of the session.
    tokens
        What its last prompt comes to.
    model
        A folder with a tokenizer and a chat template; by default one of our own is made.
    plot
        Write the cost of encoding over the length of the history to this file as a picture.
    json_
        Print JSON alone.
    """
    if model is not None and not model.is_dir():
        raise InvalidInput(f"{model} is no folder", field="--model")
    require_place(plot, "--plot")
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as folder:
        made = model or default_tokenizer(Path(folder) / "model")
        cost, figures = asyncio.run(
            measure(made, Path(folder), calls=calls, tokens=tokens, told=lambda line: print(line, file=sys.stderr))
        )
    result = {name: round(value, 3) for name, value in asdict(figures).items()}
    if plot is not None:
        draw(cost, plot)
    if json_:
        print(json.dumps(result))
    else:
        Console().print_json(data=result)


def draw(cost: SessionCost, path: Path) -> None:
    """Each call's encoding over the tokens of its prompt, and all of it so far with a straight line."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    tokens = np.asarray(cost.prompt_tokens) / 1000
    parts = {
        "encode what is new": np.asarray(cost.encode_ms),
        "find what is known": np.asarray(cost.find_ms),
        "list all ids for the engine": np.asarray(cost.list_ms),
    }
    figure, (one, all_) = pyplot.subplots(1, 2, figsize=(9.5, 3.8))
    for label, each in parts.items():
        one.plot(tokens, each, ".", markersize=2.5, label=label)
    one.set_ylim(0, 60)
    one.set_ylabel("CPU-ms of one call")
    one.legend(loc="upper left", fontsize=8)
    total = parts["encode what is new"].cumsum() / 1000
    all_.plot(tokens, total, linewidth=2, label="encode what is new")
    all_.plot([0, tokens[-1]], [0, total[-1]], "--", linewidth=0.8, label="straight line")
    all_.plot(tokens, parts["find what is known"].cumsum() / 1000, linewidth=1, label="find what is known")
    all_.set_ylabel("CPU-s of all calls so far")
    all_.legend(loc="upper left", fontsize=8)
    for axes in (one, all_):
        axes.set_xlabel("thousand tokens of the prompt")
    figure.suptitle(f"A session of {len(tokens)} calls: encoding costs what is new")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
