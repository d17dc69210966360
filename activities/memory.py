"""Memory and roles of one cell: quiet, released, restored. "Released" is measured, never taken from an answer."""

import asyncio

from temporalio import activity

from activities.cell import Cell
from activities.training import end_batch
from infra.engine.release import holding, released
from infra.records.batches import committed_weights
from workflows.messages.cell_steps import CellLease, RebootCell
from workflows.messages.errors import StillHeld
from workflows.messages.training import BatchPhase, Release, Resume

QUIET_SECONDS = 10.0
RELEASED_SECONDS = 10.0
SETTLE_SECONDS = 0.5
_PAUSE_SECONDS = 0.05


class MemoryActivities:
    """Runs on a cell's own queue."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @activity.defn(name="await_quiet")
    async def await_quiet(self, request: CellLease) -> None:
        """Writes have stopped: the engine runs nothing and nothing waits. Raises StillHeld when it does not come."""
        self._cell.fence.check(request.lease)
        async with asyncio.timeout(QUIET_SECONDS + 10):
            left_paused = self._cell.paused
            if left_paused:  # requests that nobody reads any more can only end if the engine moves
                await self._cell.engine.resume()
                self._cell.paused = False
            clock = asyncio.get_running_loop().time
            deadline, busy_at = clock() + QUIET_SECONDS, clock()
            while True:
                if left_paused:  # aborts sent while it stood still may be lost, and requests begin only now
                    await self._cell.engine.abort_all()
                loads = await self._cell.engine.loads()
                if loads.running or loads.waiting:
                    busy_at = clock()
                elif not left_paused or clock() - busy_at >= SETTLE_SECONDS:
                    return
                if asyncio.get_running_loop().time() > deadline:
                    raise StillHeld(f"the engine still has {loads.running} running, {loads.waiting} waiting requests")
                await asyncio.sleep(_PAUSE_SECONDS)

    @activity.defn(name="release_rollout")
    async def release_rollout(self, request: CellLease) -> None:
        """Give up rollout memory and see that it is given up: no request, no used token, no pin."""
        self._cell.fence.check(request.lease)
        async with asyncio.timeout(RELEASED_SECONDS + 40):
            engine, linker = self._cell.engine, self._cell.linker
            await engine.flush_cache(2.0)
            await engine.release_memory()
            deadline = asyncio.get_running_loop().time() + RELEASED_SECONDS
            while True:
                loads, stats = await engine.loads(), await linker.stats() if linker else None
                if released(loads, stats):
                    return
                if asyncio.get_running_loop().time() > deadline:
                    raise StillHeld(f"rollout memory is not free: {holding(loads, stats)}")
                await asyncio.sleep(_PAUSE_SECONDS)

    @activity.defn(name="resume_rollout")
    async def resume_rollout(self, request: CellLease) -> None:
        """Take rollout memory again; the weights in it are garbage until they are loaded."""
        self._cell.fence.check(request.lease)
        await self._cell.engine.resume_memory()

    @activity.defn(name="restore_training")
    async def restore_training(self, request: CellLease) -> None:
        """Allocate what training needs: the gradient buffer, registered for one-sided reads."""
        self._cell.fence.check(request.lease)
        await self._cell.actor.resume(Resume(boot_epoch=self._cell.boot_epoch, lease_epoch=request.lease))

    @activity.defn(name="release_training")
    async def release_training(self, request: CellLease) -> None:
        """Free gradients and temporaries, and see that they are free.

        A batch that nobody finished is discarded, unless its update is on record: then it is committed.
        """
        self._cell.fence.check(request.lease)
        fence = {"boot_epoch": self._cell.boot_epoch, "lease_epoch": request.lease}
        status = await self._cell.actor.status()
        recorded = None
        if status.phase is BatchPhase.APPLIED:
            recorded = await asyncio.to_thread(committed_weights, self._cell.records)
        await end_batch(self._cell, status, fence, recorded[0] if recorded else None)
        held = await self._cell.actor.release(Release(**fence))
        if held.gradient_bytes:
            raise StillHeld(f"the training actor still holds {held.gradient_bytes} bytes of gradients")

    @activity.defn(name="reboot_cell")
    async def reboot_cell(self, request: RebootCell) -> None:
        """Have this boot ended by its worker; the supervisor starts the next one."""
        self._cell.fence.check(request.lease)
        activity.logger.warning("cell %d is to reboot: %s", self._cell.index, request.reason)
        self._cell.over.set()

    @activity.defn(name="leave_stream")
    async def leave_stream(self, request: CellLease) -> None:
        """Claim no more micro-steps; what was claimed is finished first."""
        self._cell.fence.check(request.lease)
        await self._cell.stream.close()
