"""How many harnesses and how many graders run at once on a host: shares that can be changed while both run.

Taking on comes before giving up: a share that grows takes new work at once, one that shrinks finishes what it has in
hand first. The host obeys the newest change and says how many slots are in use.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

from workflows.messages.control import ShareSlots, SlotsInUse


class Gate:
    """Lets at most `limit` through at once; None: everybody."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.inside = limit, 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """Wait for a slot, hold it while inside."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.limit is None or self.inside < self.limit)
            self.inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self.inside -= 1
                self._changed.notify_all()

    async def resize(self, limit: int) -> None:
        async with self._changed:
            self.limit = limit
            self._changed.notify_all()


class SlotActivities:
    """Runs in the harness host. `harness` and `evaluator` are the gates its other activities pass."""

    def __init__(self, *, harness: int | None = None, evaluator: int | None = None) -> None:
        self.harness, self.evaluator = Gate(harness), Gate(evaluator)
        self._change = -1

    @activity.defn(name="share_slots")
    async def share_slots(self, request: ShareSlots) -> SlotsInUse:
        """Take these limits, unless newer ones are known; returns how many slots of each kind are in use."""
        if request.change >= self._change:
            self._change = request.change
            await self.harness.resize(request.harness)
            await self.evaluator.resize(request.evaluator)
        return SlotsInUse(harness=self.harness.inside, evaluator=self.evaluator.inside)
