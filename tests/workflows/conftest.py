from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.workflows.server import connect, dev_server
from tests.workflows.world import FakeWorld
from workers.control.worker import workflow_worker

_WORLDS = {"world", "make_world", "impatient", "client"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A world costs seconds of Temporal's time: the essential ones run with the fast tests, all others are slow."""
    for item in items:
        mine = Path(__file__).parent in item.path.parents
        if mine and _WORLDS & set(getattr(item, "fixturenames", ())) and not item.get_closest_marker("essential"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def temporal_address() -> Iterator[str]:
    with dev_server() as address:
        yield address


@pytest.fixture
async def client(temporal_address: str) -> Client:
    return await connect(temporal_address)


@pytest.fixture
async def make_world(client: Client, tmp_path) -> AsyncIterator[Callable[..., object]]:
    """Worlds with a workflow worker of the production kind; what they saw is checked at the end."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(workflow_worker(client))

        async def make(slots: tuple[int, ...] = (4, 4), **run_settings: object) -> FakeWorld:
            world = FakeWorld(client, f"run-{uuid4().hex[:8]}", tmp_path, slots)
            world.run_settings = run_settings
            stack.push_async_callback(world.close)
            await world.start()
            return world

        made: list[FakeWorld] = []

        async def kept(slots: tuple[int, ...] = (4, 4), **run_settings: object) -> FakeWorld:
            made.append(await make(slots, **run_settings))
            return made[-1]

        yield kept
        for world in made:
            assert world.problems == []


@pytest.fixture
async def world(make_world) -> FakeWorld:
    """Two cells of four slots."""
    return await make_world()
