"""`gyre replay`: has training drifted from its records?"""

import difflib
import sys
import warnings
from pathlib import Path

from rich.console import Console
from sqlalchemy import Engine, select

from infra.objects import ObjectStore
from infra.records.database import open_database
from infra.records.schema import batches
from workers.cli.arguments import Positive
from workers.cli.runs import find_run
from workflows.messages.errors import InvalidInput

TOLERANCE = 1e-5
"""Relative difference of the norms that rounding explains, where the machine or its threads differ."""


def replay(batch: str, /, *, run_dir: str | None = None, threads: Positive | None = None, json_: bool = False) -> None:
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
    manifest = find_run(run_dir)
    name = batch if "/batch/" in batch else f"{manifest.run}/batch/{batch}"
    engine = open_database(manifest.database_url)
    _require_update(engine, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of Megatron, about kernels that a replay does not use
        import torch

        from workers.cell.training import replay as recomputing

    torch.set_num_threads(threads or manifest.fleet.training_threads)
    found = recomputing.recorded(engine, name)
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


def _require_update(engine: Engine, batch: str) -> None:
    """Before anything heavy is loaded. Raises InvalidInput, naming batches that made an update."""
    made = batches.c.version_after > batches.c.version_before
    with engine.connect() as connection:
        known = list(connection.execute(select(batches.c.batch).where(made).order_by(batches.c.opened_at)).scalars())
    if batch not in known:
        near = difflib.get_close_matches(batch, known, n=5, cutoff=0.0)
        there = f"such as {', '.join(near)}" if near else "none at all"
        raise InvalidInput(f"no update was made of {batch}; there is {there}", field="BATCH")
