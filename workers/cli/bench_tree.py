"""`gyre bench tree`: what computing a shared prefix once is worth in training."""

import json

from rich.console import Console

from infra.weights.architecture import Architecture
from infra.weights.folder import load_weights
from workers.cli.arguments import Amount, Positive, Positives
from workers.supervisor.run_folder import CHECKOUT


def bench(
    *,
    sharing: Positives = (2, 4, 8),
    tokens: Positives = (4096, 16384),
    rounds: Positive = 3,
    row_seconds: Amount = 120.0,
    threads: Positive = 1,
    json_: bool = False,
) -> None:
    """Forward and backward of trees against flat paths, on the demo's policy.

    Parameters
    ----------
    sharing
        How many times more tokens the flat paths have.
    tokens
        Tokens of the tree.
    rounds
        Tree and paths alternate this often; the median ratio counts.
    row_seconds
        After so long a row begins no further round; one is always measured whole.
    threads
        Threads of torch on a CPU.
    json_
        Print JSON alone.
    """
    import torch

    from workers.bench.tree import measure
    from workers.cell.training.model import build_model

    torch.set_num_threads(threads)
    folder = CHECKOUT / "infra" / "demo" / "policy"
    model = build_model(Architecture.from_folder(folder))
    model.load_hf(load_weights(folder))
    console = Console(stderr=json_)
    rows = []
    for size in tokens:
        for times in sharing:
            with console.status(f"{size} tokens shared {times} times"):
                rows.append(measure(model, times, size, rounds, row_seconds))
            model.zero_grad(set_to_none=True)
    device = str(next(model.parameters()).device)
    result = {"device": device, "threads": threads, "parameters": model.arch.parameters, "rows": rows}
    if json_:
        print(json.dumps(result))
    else:
        Console().print_json(data=result)
