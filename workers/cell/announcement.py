"""A boot tells its Cell workflow that it is up, and tells every later one.

The workflow may not exist yet when the run begins. It may be a new one while this boot goes on: its index was reclaimed
and offered again between two looks of the supervisor, or the workflow was started anew by hand.
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
    """Tell the Cell workflow of `up`, and any that takes its place, until cancelled.

    Looking adds nothing to a workflow's history. Telling one twice (it has continued as new) changes nothing: a boot
    that is known is ignored. What Temporal refuses is tried again at the next look, and logged when it changes.
    """
    handle = client.get_workflow_handle(ids.cell_workflow_id(run, up.cell))
    told, refused = "", None
    while True:
        try:
            current = (await handle.describe()).run_id
            if current != told:
                await handle.signal("worker_up", up)
                told = current
            refused = None
        except RPCError as error:
            if error.status not in _QUIET and error.status is not refused:
                _log.warning("cell %d, boot %d, cannot be announced: %s", up.cell, up.boot_epoch, error)
            refused = error.status
        await asyncio.sleep(look_seconds if told else first_pause_seconds)
