"""Who holds the optimizer: a cell becomes the core, a core is one no more.

What is handed over is the last committed set, which every cell can read: weights, optimizer state and generators under
one seal. So the old core is not asked for anything, and may be dead.
"""

import asyncio

from temporalio import activity

from activities.cell import Cell
from activities.training import end_batch
from activities.weights import ensure_core, holds
from infra.records.batches import committed_weights
from workflows.messages.cell_steps import CellLease, CoreTaken, TakeCore
from workflows.messages.errors import VersionMismatch
from workflows.messages.training import BatchPhase, LayDown


class SuccessionActivities:
    """Runs on a cell's own queue."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @activity.defn(name="take_core")
    async def take_core(self, request: TakeCore) -> CoreTaken:
        """Restore the newest committed set as the core; a batch that the cell is in goes on without it.

        Raises VersionMismatch where the records know less than the asker, CheckpointUnusable for a damaged set.
        """
        cell = self._cell
        cell.fence.check(request.lease)
        found = await asyncio.to_thread(committed_weights, cell.records)
        weights = found[0] if found is not None else None
        asked = request.weights
        if (
            weights is None
            or weights.version < asked.version
            or (weights.version == asked.version and weights != asked)
        ):
            raise VersionMismatch(f"version {asked.version} ({asked.checksum[:12]}) is not what is on record")
        await cell.stream.close()
        await ensure_core(cell, weights, request.lease)
        status = await cell.actor.status()
        if status.optimizer_steps is None or not holds(status, weights):
            raise VersionMismatch(
                f"the actor holds version {status.version} after it took over version {weights.version}"
            )
        return CoreTaken(weights=weights, optimizer_steps=status.optimizer_steps)

    @activity.defn(name="lay_down_core")
    async def lay_down_core(self, request: CellLease) -> None:
        """Be the core no more: whatever comes late is refused. An update that is on record is committed first."""
        cell = self._cell
        cell.fence.check(request.lease)
        await cell.stream.close()
        fence = {"boot_epoch": cell.boot_epoch, "lease_epoch": request.lease}
        status, recorded = await cell.actor.status(), None
        if status.phase is BatchPhase.APPLIED:
            recorded = await asyncio.to_thread(committed_weights, cell.records)
        await end_batch(cell, status, fence, recorded[0] if recorded else None)
        await cell.actor.lay_down(LayDown(**fence))
