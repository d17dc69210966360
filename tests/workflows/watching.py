"""A look at a run's counters all the time, whatever a test does meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.service import RPCError

from tests.workflows.world import FakeWorld


@asynccontextmanager
async def watching(world: FakeWorld) -> AsyncIterator[list[tuple[int, int, int]]]:
    """(d, p, f) whenever they change: 0 <= f <= p <= d, and none ever falls. The last look is after the block."""
    seen: list[tuple[int, int, int]] = []

    async def look() -> None:
        books = (await world.state()).accounts
        now = (books.dispatched, books.launched, books.finished)
        if not 0 <= now[2] <= now[1] <= now[0]:
            world.problem(f"counters out of order: d, p, f = {now}")
        if seen and any(new < old for new, old in zip(now, seen[-1], strict=True)):
            world.problem(f"counters fell from {seen[-1]} to {now}")
        if not seen or now != seen[-1]:
            seen.append(now)

    async def keep_looking() -> None:
        while True:
            try:
                await look()
            except RPCError:  # no worker at the moment
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(keep_looking())
    try:
        yield seen
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(200):
        while True:
            with contextlib.suppress(RPCError):  # the worker may have been killed just now
                await look()
                return
            await asyncio.sleep(0.2)
