"""`gyre bench weights`: what a verified pull costs against a plain read, a publish against the engine's own update."""

import asyncio
import json
from pathlib import Path

from rich.console import Console

from workers.cli.arguments import Count, Positive
from workflows.messages.errors import InvalidInput


def bench(
    *,
    megabytes: Positive = 270,
    rounds: Positive = 9,
    publish_rounds: Count = 5,
    weights_folder: Path = Path("/dev/shm"),
    json_: bool = False,
) -> None:
    """Move made-up weights, verified and not, in turn.

    Parameters
    ----------
    megabytes
        At least so many (10^6 bytes) of fp32 weights.
    rounds
        Pulls that count.
    publish_rounds
        Publishes to a real SGLang engine that count; 0 starts none.
    weights_folder
        Memory-backed storage the engine loads from.
    json_
        Print JSON alone.
    """
    if not weights_folder.is_dir():
        raise InvalidInput(f"there is no folder {weights_folder}", field="--weights-folder")
    from workers.bench.weights import measure

    result = asyncio.run(
        measure(megabytes, rounds=rounds, publish_rounds=publish_rounds, weights_folder=weights_folder)
    )
    if json_:
        print(json.dumps(result))
    else:
        Console().print_json(data=result)
