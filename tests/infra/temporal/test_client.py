"""Questions to workflows, on a real Temporal server."""

import asyncio
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from infra.temporal.client import ASK_AGAIN, ask
from tests.workflows.server import connect, dev_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@workflow.defn(name="Asked", sandboxed=False)
class Asked:
    asked = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def word(self) -> str:
        return "hello"

    @workflow.query
    def late_word(self) -> str:
        self.asked += 1
        if self.asked < 3:
            raise RuntimeError(f"refused: {ASK_AGAIN}")
        return "here"

    @workflow.query
    def no_word(self) -> str:
        self.asked += 1
        raise RuntimeError(f"asked {self.asked} times")


@pytest.fixture
async def client():
    with dev_server() as address:
        yield await connect(address)


async def test_a_workflow_that_is_too_busy_for_a_query_is_asked_again(client: Client) -> None:
    queue = f"asked-{uuid4().hex}"
    handle = await client.start_workflow(Asked.run, id=queue, task_queue=queue)
    questions = [asyncio.create_task(ask(handle, "word", str)) for _ in range(4)]
    with pytest.raises(RPCError) as refused:
        # Nobody works on it, so the first question waits and fills the only place there is.
        await asyncio.gather(*[ask(handle, "word", str, busy_seconds=0) for _ in range(4)])
    assert refused.value.status is RPCStatusCode.RESOURCE_EXHAUSTED
    async with Worker(client, task_queue=queue, workflows=[Asked]):
        assert await asyncio.gather(*questions) == ["hello"] * 4
    await handle.terminate()


async def test_a_refused_query_is_asked_again_and_one_that_fails_is_not(client: Client) -> None:
    queue = f"asked-{uuid4().hex}"
    async with Worker(client, task_queue=queue, workflows=[Asked]):
        handle = await client.start_workflow(Asked.run, id=queue, task_queue=queue)
        with pytest.raises(WorkflowQueryFailedError, match=ASK_AGAIN):
            await ask(handle, "late_word", str, busy_seconds=0)
        assert await ask(handle, "late_word", str) == "here"
        with pytest.raises(WorkflowQueryFailedError, match="asked 4 times"):
            await ask(handle, "no_word", str)
        await handle.terminate()
