"""`gyre cells`: a run's fleet from outside; what an outer scheduler does by updates, typed by a person."""

import asyncio
from pathlib import Path

from rich.console import Console
from rich.table import Table
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.service import RPCError

from infra.settings.run import RunManifest
from infra.temporal.client import ask, connect
from workers.cli.runs import find_run
from workers.supervisor.run_folder import is_supervised
from workflows.messages.base import LONGEST_SECONDS
from workflows.messages.errors import InvalidInput, Transient
from workflows.messages.fleet import Elasticity, OfferCell, ReclaimCell
from workflows.messages.ids import scheduler_id

_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 0.5


def cells_show(*, run_dir: Path | None = None) -> None:
    """What the run can give and take, and what role changes have cost it."""
    manifest = _running(run_dir)
    elastic = asyncio.run(_elasticity(manifest))
    table = Table("cell", "slots", "trains", "", title=f"{elastic.min_cells} to {elastic.max_cells} cells")
    for cell in elastic.cells:
        leaves = "leaving" if cell.index in elastic.leaving else ""
        may = "may be reclaimed" if cell.index in elastic.reclaimable else ""
        core = "core" if cell.index == elastic.core else ""
        late = f"late: {elastic.late[cell.index]}" if cell.index in elastic.late else ""
        told = ", ".join(part for part in (core, leaves or may, late) if part)
        table.add_row(str(cell.index), str(cell.slots), "yes" if cell.trains else "no", told)
    console = Console()
    console.print(table)
    for direction, cost in elastic.costs.items():
        console.print(f"{direction.replace('_', ' ')}: {cost.mean_seconds:.2f} s, of {cost.count} measured")


def cells_offer(count: int = 1, /, *, run_dir: Path | None = None) -> None:
    """Offer `count` cells like the run's last one; the stack starts their workers.

    The same by hand: temporal workflow update execute --workflow-id RUN/scheduler --name offer_cell
    --input '{"cell": {"index": 3, "slots": 8}}'
    """
    if count < 1:
        raise InvalidInput(f"expected at least 1, got {count}", field="COUNT")
    manifest = _running(run_dir)
    for _ in range(count):
        print(asyncio.run(offer(manifest)))


def cells_reclaim(cell: int, /, *, deadline: float = 300.0, wait: bool = False, run_dir: Path | None = None) -> None:
    """Take a cell back within `deadline` seconds; with --wait, return when it is gone.

    The core first hands its weights and its optimizer state to another cell, between two updates if there is time.
    """
    if cell < 0:
        raise InvalidInput(f"expected the index of a cell, got {cell}", field="CELL")
    if not 0 <= deadline <= LONGEST_SECONDS:
        raise InvalidInput(f"expected 0 to {LONGEST_SECONDS:g} seconds from now, got {deadline:g}", field="--deadline")
    manifest = _running(run_dir)
    print(asyncio.run(reclaim(manifest, cell, deadline, wait=wait)))


def _running(run_dir: Path | None) -> RunManifest:
    """Raises InvalidInput for a run that stands still: its address may be that of another run by now."""
    manifest = find_run(run_dir)
    if not is_supervised(manifest.folder):
        raise InvalidInput(f"run {manifest.run} in {manifest.folder} is not running", field="--run-dir")
    return manifest


async def _elasticity(manifest: RunManifest) -> Elasticity:
    return await _ask(await _connected(manifest), manifest)


async def offer(manifest: RunManifest) -> str:
    """Offer one more cell like the last; what the Scheduler says. Raises InvalidInput where it refuses."""
    client = await _connected(manifest)
    elastic = await _ask(client, manifest)
    like = elastic.cells[-1].model_copy(update={"index": elastic.next_index})
    return await _update(client, manifest, "offer_cell", OfferCell(cell=like))


async def reclaim(manifest: RunManifest, cell: int, deadline: float, *, wait: bool = False) -> str:
    """Take a cell back within `deadline` seconds; raises InvalidInput where the Scheduler refuses."""
    client = await _connected(manifest)
    said = await _update(client, manifest, "reclaim_cell", ReclaimCell(cell=cell, deadline_seconds=deadline))
    while wait and cell in {known.index for known in (await _ask(client, manifest)).cells}:
        await asyncio.sleep(_LOOK_SECONDS)
    return f"cell {cell} has left the run" if wait else said


async def _connected(manifest: RunManifest) -> Client:
    return await connect(manifest, timeout_seconds=_CONNECT_SECONDS)


async def _ask(client: Client, manifest: RunManifest) -> Elasticity:
    handle = client.get_workflow_handle(scheduler_id(manifest.run))
    try:
        return await ask(handle, "elasticity", Elasticity)
    except (RPCError, WorkflowQueryFailedError) as error:
        raise Transient(f"the scheduler of {manifest.run} does not answer: {error}") from error


async def _update(client: Client, manifest: RunManifest, name: str, request: OfferCell | ReclaimCell) -> str:
    handle = client.get_workflow_handle(scheduler_id(manifest.run))
    try:
        return await handle.execute_update(name, request, result_type=str)
    except WorkflowUpdateFailedError as error:
        raise InvalidInput(str(error.cause)) from error
    except RPCError as error:
        raise Transient(f"the scheduler of {manifest.run} does not answer: {error}") from error
