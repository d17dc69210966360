"""A stack follows its fleet: who was offered to the Scheduler gets a worker process, who has left it loses its own.

The Scheduler alone says which cells there are. What is written to `run.json` is where a cell is found, for its peers
and for the next start of the stack.
"""

import asyncio

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from infra.ports import free_ports
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest
from workflows.messages.fleet import CellSpec, Elasticity
from workflows.messages.ids import scheduler_id

LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 10.0


async def cells_now(client: Client, run: str) -> tuple[CellSpec, ...] | None:
    """The cells of the run; None while its Scheduler cannot say."""
    try:
        # Not `wait_for`: before Python 3.12 that forgets a cancellation which comes together with the answer.
        async with asyncio.timeout(_ANSWER_SECONDS):
            handle = client.get_workflow_handle(scheduler_id(run))
            return (await handle.query("elasticity", result_type=Elasticity)).cells
    except (RPCError, WorkflowQueryFailedError, TimeoutError):
        return None


def with_cell(manifest: RunManifest, cell: CellSpec) -> RunManifest:
    """The manifest with `cell`, which is a new one or has left before; the ports of a new one are new.

    Cells before it that came and went between two looks were never seen here. They get a place too, as ones that have
    left: a fleet is numbered without gaps. Raises ValueError for a fleet that could not be loaded again.
    """
    known = list(manifest.fleet.cells)
    ports = [list(manifest.engine_ports), list(manifest.actor_ports), list(manifest.linker_ports)]
    taken = {port for kind in ports for port in kind}
    unseen = range(len(known), cell.index)
    known += [cell.model_copy(update={"index": index}) for index in unseen]
    known[cell.index : cell.index + 1] = [cell]
    new = free_ports(3 * (len(known) - len(manifest.fleet.cells)), host=manifest.host, avoid=taken)
    for number, kind in enumerate(ports):
        kind += new[number::3]
    fleet = Fleet.model_validate(manifest.fleet.model_copy(update={"cells": tuple(known)}).model_dump())
    return manifest.model_copy(
        update={
            "fleet": fleet,
            "engine_ports": tuple(ports[0]),
            "actor_ports": tuple(ports[1]),
            "linker_ports": tuple(ports[2]),
            "gone": tuple(sorted({*manifest.gone, *unseen} - {cell.index})),
        }
    )


def offered_anew(manifest: RunManifest, cell: CellSpec) -> bool:
    """Whether `cell`, whose worker runs, is another one than `run.json` has in its place: it left and came back between
    two looks, and the later offer is the one that holds."""
    return with_cell(manifest, cell).fleet != manifest.fleet


def without_cell(manifest: RunManifest, index: int) -> RunManifest:
    """The manifest after cell `index` has left: its place is kept, no process is started for it."""
    return manifest.model_copy(update={"gone": tuple(sorted({*manifest.gone, index}))})
