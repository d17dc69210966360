"""A look at a run's counters all the time, whatever a test does meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.service import RPCError

from tests.workflows.world import FakeWorld


@asynccontextmanager
async def watching(world: FakeWorld) -> AsyncIterator[list[tuple[int, int, int]]]:
    """Looks at the counters all the time: 0 <= f <= p <= d, and none ever falls."""
    seen: list[tuple[int, int, int]] = []

    async def look() -> None:
        while True:
            try:
                books = (await world.state()).accounts
            except RPCError:  # no worker at the moment
                await asyncio.sleep(0.2)
                continue
            now = (books.dispatched, books.launched, books.finished)
            if not 0 <= now[2] <= now[1] <= now[0]:
                world.problem(f"counters out of order: d, p, f = {now}")
            if seen and any(new < old for new, old in zip(now, seen[-1], strict=True)):
                world.problem(f"counters fell from {seen[-1]} to {now}")
            if not seen or now != seen[-1]:
                seen.append(now)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(look())
    try:
        yield seen
        await asyncio.sleep(0.1)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
