"""A boot is announced to the Cell workflow of its index, and to no other one, on a real Temporal server."""

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
TURNS = 6000


@workflow.defn
class HeardOfBoots:
    """What a Cell workflow hears, and nothing else."""

    @workflow.init
    def __init__(self, heard: list[int]) -> None:
        self.heard = heard
        self.over = self.rolls = False

    @workflow.signal
    def worker_up(self, boot: CellWorkerUp) -> None:
        self.heard.append(boot.boot_epoch)

    @workflow.signal
    def retire(self) -> None:
        self.over = True

    @workflow.signal
    def roll_over(self) -> None:
        self.rolls = True

    @workflow.run
    async def run(self, heard: list[int]) -> list[int]:
        await workflow.wait_condition(lambda: self.over or self.rolls)
        if self.rolls:
            workflow.continue_as_new(self.heard)
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
    name = cell_workflow_id(run, UP.cell)
    await client.start_workflow(HeardOfBoots.run, [], id=name, task_queue="cells")
    return client.get_workflow_handle(name, result_type=list[int])


async def signals(handle: WorkflowHandle) -> int:
    events = [event async for event in handle.fetch_history_events()]
    return sum(event.HasField("workflow_execution_signaled_event_attributes") for event in events)


async def until_told(handle: WorkflowHandle) -> None:
    for _ in range(TURNS):
        if await signals(handle):
            return
        await asyncio.sleep(0.02)
    raise TimeoutError("the boot was not announced")


async def test_a_boot_is_told_once_and_ends_when_its_cell_is_offered_anew(client: Client) -> None:
    """The workflow continues as new: nothing happens. Another one takes its place: it does not hear of this boot."""
    telling = asyncio.create_task(announce(client, "again", UP, first_pause_seconds=0.02, look_seconds=0.02))
    try:
        handle = await begin(client, "again")
        await until_told(handle)
        await handle.signal("roll_over")
        await asyncio.sleep(0.3)  # some looks
        assert not telling.done()
        await handle.signal("retire")
        assert await handle.result() == [UP.boot_epoch]
        other = await begin(client, "again")
        await asyncio.wait_for(telling, 200)
        await other.signal("retire")
        assert await other.result() == []
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
