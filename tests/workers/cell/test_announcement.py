"""A boot is announced to every Cell workflow of its index, on a real Temporal server."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.workflows.server import connect, dev_server
from workers.cell.announcement import announce
from workflows.messages.fleet import CellWorkerUp
from workflows.messages.ids import cell_workflow_id

UP = CellWorkerUp(cell=3, boot_epoch=7, queue="cell-3", engine_url="http://e", actor_url="http://a")
TURNS = 600


@workflow.defn
class HeardOfBoots:
    """What a Cell workflow hears, and nothing else."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.over = False

    @workflow.signal
    def worker_up(self, boot: CellWorkerUp) -> None:
        self.heard.append(boot.boot_epoch)

    @workflow.signal
    def retire(self) -> None:
        self.over = True

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.wait_condition(lambda: self.over)
        return self.heard


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with dev_server() as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[Client]:
    client = await connect(address)
    async with Worker(
        client, task_queue="cells", workflows=[HeardOfBoots], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        yield client


async def begin(client: Client, run: str) -> WorkflowHandle:
    return await client.start_workflow(HeardOfBoots.run, id=cell_workflow_id(run, UP.cell), task_queue="cells")


async def signals(handle: WorkflowHandle) -> int:
    events = [event async for event in handle.fetch_history_events()]
    return sum(event.HasField("workflow_execution_signaled_event_attributes") for event in events)


async def until_told(handle: WorkflowHandle) -> None:
    for _ in range(TURNS):
        if await signals(handle):
            return
        await asyncio.sleep(0.02)
    raise TimeoutError("the boot was not announced")


async def test_every_workflow_of_the_cell_hears_of_the_boot_and_hears_it_once(client: Client) -> None:
    """Offered, reclaimed and offered again while the same boot goes on."""
    telling = asyncio.create_task(announce(client, "again", UP, first_pause_seconds=0.02, look_seconds=0.02))
    try:
        for _ in range(2):
            handle = await begin(client, "again")
            await until_told(handle)
            await asyncio.sleep(0.2)  # ten more looks
            await handle.signal("retire")
            assert await handle.result() == [UP.boot_epoch]
        assert not telling.done()
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
