"""KV hand-off: pin at the source before requests are cancelled, read at the destination, acknowledge, release.

An optimisation with bounds everywhere: whatever fails here, the destination recomputes.
"""

import asyncio

from temporalio import activity

from activities.cell import Cell
from workflows.messages.cell_steps import CellLease, KvPulled, PullKv, RetainKv

HOLD_SECONDS = 60.0


class KvActivities:
    """Runs on a cell's own queue."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @activity.defn(name="retain_kv")
    async def retain_kv(self, request: RetainKv) -> None:
        """Pin these executions' latest prefixes. Without a linker there is nothing to pin and nothing to read."""
        self._cell.fence.check(request.lease)
        if self._cell.linker is not None:
            await self._cell.linker.retain(request.lease, request.executions, hold_seconds=HOLD_SECONDS)

    @activity.defn(name="pull_kv")
    async def pull_kv(self, request: PullKv) -> KvPulled:
        """At the destination: read the source's pages once its writes have stopped, verify, and say so.

        The source is told by the release step, after every destination is done.
        """
        if self._cell.linker is None:
            return KvPulled(arrived=(), tokens=0, bytes=0)
        source = self._cell.peer_linker(request.source_cell)
        try:
            manifest = await source.manifest(request.lease)
            pulled = await self._cell.linker.pull(manifest, request.executions)
        finally:
            await source.close()
        return KvPulled(arrived=pulled.arrived, tokens=pulled.tokens, bytes=pulled.bytes)

    @activity.defn(name="release_kv")
    async def release_kv(self, request: CellLease) -> None:
        """End the pins of this hand-off, whether it arrived or was given up."""
        self._cell.fence.check(request.lease)
        if self._cell.linker is not None:
            await self._cell.linker.acknowledge(request.lease)
            await asyncio.shield(self._cell.linker.release(request.lease, abandon=True))
