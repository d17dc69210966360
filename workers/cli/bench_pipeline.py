"""`gyre bench pipeline`: the open-ended pipeline of a cell's stages beside Megatron's schedule of a fixed count."""

import json
import os
from pathlib import Path

from rich.console import Console

from infra.weights.folder import require_model
from workers.cli.arguments import Positive
from workers.supervisor.run_folder import CHECKOUT


def bench(
    *,
    stages: Positive = 2,
    micro_steps: Positive = 12,
    tokens: Positive = 1024,
    rounds: Positive = 7,
    threads: Positive = 1,
    model: str = "infra/demo/policy",
    json_: bool = False,
) -> None:
    """The same micro-steps through both, in turn, on the same stages: time, utilisation, idle time in the flow.

    Parameters
    ----------
    stages
        Pipeline stages, a process each.
    micro_steps
        How many; the open-ended pipeline is not told.
    tokens
        Tokens of each, half of them targets.
    rounds
        Both take turns this often; medians count. One round more warms up.
    threads
        Threads of torch per stage.
    model
        Model folder, relative to the checkout.
    json_
        Print JSON alone.
    """
    folder = CHECKOUT / Path(model)
    require_model(folder)
    import torch

    from workers.bench.pipeline.rounds import measure

    torch.set_num_threads(threads)
    with Console(stderr=True).status(f"{micro_steps} micro-steps of {tokens} tokens in {stages} stages"):
        result = measure(folder, stages=stages, steps=micro_steps, tokens=tokens, rounds=rounds, threads=threads)
    result["load"] = os.getloadavg()
    print(json.dumps(result)) if json_ else Console().print_json(data=result)
