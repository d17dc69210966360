"""`gyre replay`: has training drifted from its records?"""

import sys
from pathlib import Path

from rich.console import Console

from infra.objects import ObjectStore
from infra.records.database import open_database
from workers.cli.runs import find_run

TOLERANCE = 1e-5
"""Relative difference of the norms that rounding explains, where the machine or its threads differ."""


def replay(batch: str, /, *, run_dir: str | None = None, threads: int | None = None, json_: bool = False) -> None:
    """Recompute the gradient of a batch from its records on one process; exits with 1 if it is another one.

    Parameters
    ----------
    batch
        Its id, `<run>/batch/<burst>/<step>`, or the part after `batch/`.
    run_dir
        Folder (or name) of the run; without it the one last started.
    threads
        Threads of torch; without it as many as the run's actors had, which repeats them to the last bit.
    json_
        Print JSON alone.
    """
    import torch

    from workers.cell.training import replay as recomputing

    manifest = find_run(run_dir)
    torch.set_num_threads(threads or manifest.fleet.training_threads)
    name = batch if "/batch/" in batch else f"{manifest.run}/batch/{batch}"
    found = recomputing.recorded(open_database(manifest.database_url), name)
    result = recomputing.replay(
        found,
        base=Path(manifest.model_folder),
        checkpoints=manifest.checkpoints,
        objects=ObjectStore(manifest.object_store_url),
        staged=frozenset(cell.index for cell in manifest.fleet.cells if cell.stages > 1),
    )
    same = result.same_bits or result.norm_error <= TOLERANCE
    if json_:
        print(result.model_dump_json())
    else:
        says = "the same to the last bit" if result.same_bits else f"norms differ by {result.norm_error:.1e}"
        Console(highlight=False).print(
            f"{result.batch}: {result.micro_steps} micro-steps of cells {', '.join(map(str, result.cells))} "
            f"at version {result.version}\n"
            f"recorded norm {result.recorded_norm:.6g}, recomputed {result.norm:.6g}: {says}"
        )
    sys.exit(0 if same else 1)
