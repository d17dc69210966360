"""A boot tells its Cell workflow that it is up, and notices when that one is replaced by another.

The workflow may not exist yet when the run begins. Another one takes its place when the cell's index is reclaimed and
offered again between two looks of the supervisor. What this boot holds is then as the first one left it, released or
half released: the other one is to get a boot of its own.
"""

import asyncio
import logging

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workflows.messages import ids
from workflows.messages.fleet import CellWorkerUp

_log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LOOK_SECONDS = 5.0
_QUIET = (RPCStatusCode.NOT_FOUND, RPCStatusCode.UNAVAILABLE)


async def announce(
    client: Client,
    run: str,
    up: CellWorkerUp,
    *,
    first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Tell the Cell workflow of `up`; return when another one, not its continuation, has taken its place.

    Looking adds nothing to the workflow's history. What Temporal refuses is tried again at the next look, and logged
    when it changes.
    """
    handle = client.get_workflow_handle(ids.cell_workflow_id(run, up.cell))
    told, refused = "", None
    while True:
        try:
            life = (await handle.describe()).raw_info.first_run_id or handle.id  # an old server does not say
            if told and life != told:
                return
            if not told:
                await handle.signal("worker_up", up)
                told = life
            refused = None
        except RPCError as error:
            if error.status not in _QUIET and error.status is not refused:
                _log.warning("cell %d, boot %d, cannot be announced: %s", up.cell, up.boot_epoch, error)
            refused = error.status
        await asyncio.sleep(look_seconds if told else first_pause_seconds)
