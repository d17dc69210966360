"""Two real engines with linkers, started once for the tests of this folder, and a client of each per test."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.engine import EngineClient, GenerateChunk, GenerateRequest, new_rid
from infra.engine.linker_client import LinkerClient
from infra.ports import free_ports
from tests.workers.cell.rollout.tiny_model import VOCABULARY, write_tiny_model
from workers.cell.rollout.command import EngineParameters, LinkerParameters
from workers.cell.rollout.server import EngineServer

LEASES = itertools.count(1)
"""Lease numbers rise over the life of an engine, so all tests draw from here."""
ADMIN_KEY, LINKER_TOKEN = "admin", "linker"
KEY = "run|0|weights-a"


def parameters_of(model: Path, epoch: int = 0) -> EngineParameters:
    port, control = free_ports(2)
    linker = LinkerParameters(port=control, token=LINKER_TOKEN, pool_tokens=32768, boot_epoch=epoch)
    return EngineParameters(model_path=model, port=port, version="0", admin_key=ADMIN_KEY, linker=linker)


async def wait_ready(server: EngineServer) -> None:
    async with EngineClient(server.parameters.url, vocabulary=VOCABULARY) as client:
        await server.ready(client)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of two sets of weights of one architecture."""
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("ab"):
        write_tiny_model(root / name, seed)
    return {name: root / name for name in "ab"}


@pytest.fixture(scope="session")
def servers(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineServer]]:
    logs = tmp_path_factory.mktemp("engines")
    started = [EngineServer(parameters_of(models["a"], epoch), logs / f"{epoch}.log") for epoch in range(2)]
    try:
        for server in started:
            server.start()
        for server in started:
            asyncio.run(wait_ready(server))
        yield started
    finally:
        for server in started:
            server.kill()


@dataclass
class Engine:
    """A real engine and its clients."""

    server: EngineServer
    client: EngineClient
    linker: LinkerClient

    async def generate(
        self,
        ids: list[int],
        count: int,
        *,
        rid: str = "",
        cut: int = 0,
        key: str = KEY,
        session: str | None = None,
        **sampling,
    ) -> "Answer":
        """All of one answer; with `cut`, abort it once so many tokens are here."""
        request = GenerateRequest(
            rid or new_rid(), ids, count, key, session_id=session, ignore_eos=True, **({"temperature": 0} | sampling)
        )
        answer = Answer([], [], None)
        async for chunk in self.client.generate(request):
            answer.ids += chunk.ids
            answer.logprobs += chunk.logprobs
            answer.last = chunk
            if cut and len(answer.ids) >= cut:
                await self.client.abort(request.rid)
                cut = 0
        return answer


@dataclass
class Answer:
    ids: list[int]
    logprobs: list[float]
    last: GenerateChunk | None

    @property
    def end(self) -> GenerateChunk:
        assert self.last is not None
        return self.last


@pytest.fixture
async def engines(servers: list[EngineServer]) -> AsyncIterator[tuple[Engine, Engine]]:
    """Both engines, with empty caches."""
    found: list[Engine] = []
    for server in servers:
        parameters = server.parameters
        assert parameters.linker is not None
        client = EngineClient(parameters.url, vocabulary=VOCABULARY, admin_key=ADMIN_KEY)
        linker = LinkerClient(f"http://127.0.0.1:{parameters.linker.port}", LINKER_TOKEN)
        await client.flush_cache(wait_seconds=120)
        found.append(Engine(server, client, linker))
    yield found[0], found[1]
    for engine in found:
        await engine.client.close()
        await engine.linker.close()


@pytest.fixture
def prompt() -> list[int]:
    """400 ids."""
    return random.Random(2).choices(range(5, VOCABULARY), k=400)
