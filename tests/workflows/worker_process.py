"""A workflow worker in a process of its own, as `python -m tests.workflows.worker_process ADDRESS`; no cache."""

import asyncio
import sys

from tests.workflows.server import connect
from workers.control.worker import workflow_worker


async def main(address: str) -> None:
    async with workflow_worker(await connect(address), max_cached_workflows=0):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
