"""A stage for the proxy: real paced engines and a real proxy on loopback sockets, all in the test's event loop."""

import asyncio
import contextlib
import functools
import hashlib
import json
import shutil
import socket
import time
from pathlib import Path

import httpx2
import pytest
import uvicorn
from sqlalchemy import insert, select

from infra.records import schema
from infra.records.calls import calls_of, segments_of
from infra.records.database import open_database
from infra.routing import RoutingClient
from infra.tokenizer import ChatTokenizer
from tests.infra.tokenizer.conftest import write_folder
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.routes import paced_app
from workers.cell.rollout.paced.settings import PacedSettings
from workers.cell.rollout.paced.tokens import advance, chain
from workers.proxy.server import build_proxy
from workers.proxy.settings import ProxySettings
from workflows.messages.burst import Sampling
from workflows.messages.routing import (
    CancelRequest,
    DoorChange,
    EngineEntry,
    RegisterExecution,
    RerouteRequest,
)

RUN = "test"
KEY = "an-admin-key-of-some-length"
CHECKSUM = "c" * 64
QUICK = ProxySettings(
    sticky_wait_seconds=0.1, engine_backoff_seconds=0.1, abort_grace_seconds=2, headers_seconds=30, max_faults=4
)


def execution_name(member=0):
    return f"{RUN}/execution/b/0000/{member:02d}"


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


async def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it never happened")
        await asyncio.sleep(0.003)


def sse(text):
    """Parsed data events of a finished stream, and whether it ended with [DONE]."""
    datas = [block[6:] for block in text.split("\n\n") if block.startswith("data: ")]
    return [json.loads(data) for data in datas if data != "[DONE]"], datas[-1:] == ["[DONE]"]


def text_of(events):
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event.get("choices", []))


def padded(stage, tokens):
    """A user message whose prompt is exactly `tokens` long."""
    words = 0
    while len(stage.chat.render([user("x" + " " * 3 * words)])) <= tokens - 20:
        words += 1
    text = "x" + " " * 3 * words
    for extra in range(60):
        message = user(text + "qz" * (extra // 2) + "q" * (extra % 2))
        if len(stage.chat.render([message])) == tokens:
            return message
    raise AssertionError("no such length")


class Served:
    """An ASGI application on a port of its own, in this loop."""

    def __init__(self, app):
        self.app = app

    async def open(self):
        # With the protocol named, asyncio switches Nagle's algorithm off, as it does for servers it binds itself.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        await until(lambda: self._server.started)
        return self

    async def close(self):
        """Hang up and be gone. The server's own way out waits for its ticks, 0.2 s a test."""
        for listener in self._server.servers:
            listener.close()
        state = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        answering = list(state.tasks)
        for task in (*answering, self._task):
            task.cancel()
        await asyncio.gather(*answering, self._task, return_exceptions=True)


@functools.cache
def tokenizer_of(folder: Path) -> ChatTokenizer:
    """One for all tests on this folder: what a template allows is found out once, not once a proxy."""
    return ChatTokenizer(folder)


class Stage:
    """Engines `cell-0`, `cell-1`, ... and one proxy over one database."""

    def __init__(self, folder: Path, database: str, context=1000, settings=QUICK):
        self.folder, self.context, self.settings = folder, context, settings
        self.chat = tokenizer_of(folder)
        self.database = open_database(database)
        self.engines: list[PacedEngine] = []
        self._served: list[Served] = []

    async def __aenter__(self):
        await self.start_proxy()
        return self

    async def __aexit__(self, *_):
        await asyncio.gather(self.stop_proxy(), *(served.close() for served in self._served))
        self.database.dispose()

    async def start_proxy(self):
        self.proxy = await build_proxy(
            run=RUN,
            database=self.database,
            model_folder=self.folder,
            context_tokens=self.context,
            admin_key=KEY,
            settings=self.settings,
            tokenizer=self.chat,
        )
        self._public = await Served(self.proxy.public).open()
        self.client = httpx2.AsyncClient(base_url=self._public.url, timeout=200, verify=False)
        transport = httpx2.ASGITransport(app=self.proxy.admin)
        self.control = RoutingClient("http://proxy", KEY, transport=transport)

    async def stop_proxy(self):
        await self.client.aclose()
        await self.control.close()
        await self._public.close()
        await self.proxy.close()

    async def engine(self, *, version=1, open_door=True, slots=8, context=None, **settings):
        """One more engine, its door open at `version`."""
        cell = len(self.engines)
        defaults = {"tokens_per_second": 2000, "prefill_tokens_per_second": 1e9, "vocab_size": 400}
        engine = PacedEngine(
            PacedSettings(
                **{**defaults, **settings},
                model=str(self.folder),
                version=str(version),
                slots=slots,
                context=context or self.context + 8,
            )
        )
        served = await Served(paced_app(engine)).open()
        self.engines.append(engine)
        self._served.append(served)
        await self.known(cell, served.url, version=version, open_door=open_door, slots=slots)
        return engine

    async def known(self, cell, url, *, version=1, open_door=True, slots=8, epoch=1):
        name = f"cell-{cell}"
        entry = EngineEntry(engine=name, cell=cell, boot_epoch=epoch, url=url, slots=slots, kv_tokens=16384)
        await self.control.put_engine(entry)
        if open_door:
            await self.door(cell, version=version, epoch=epoch)

    async def door(self, cell, *, version=None, open_door=True, epoch=1):
        change = DoorChange(engine=f"cell-{cell}", boot_epoch=epoch, open=open_door, version=version, checksum=CHECKSUM)
        await self.control.change_door(change)

    async def reroute(self, cell, lease="lease", epoch=1):
        return await self.control.reroute(RerouteRequest(engine=f"cell-{cell}", boot_epoch=epoch, lease=lease))

    async def cancel(self, cell, lease="lease", kv=0.0, epoch=1):
        request = CancelRequest(engine=f"cell-{cell}", boot_epoch=epoch, lease=lease, await_kv_seconds=kv)
        for _ in range(20):  # as whoever drains an engine does
            result = await self.control.cancel(request)
            if not result.still_running:
                return result
        raise AssertionError("requests are still running there")

    def speed(self, cell, tokens_per_second):
        """From now on. Tests start an engine slowly, so that no stall of this machine lets an answer end too soon."""
        engine = self.engines[cell]
        engine.settings = engine.settings.model_copy(update={"tokens_per_second": tokens_per_second})

    async def speaking(self, cell, tokens=2):
        """Wait until an answer on this engine has some tokens."""
        engine = self.engines[cell]
        await until(lambda: engine.running and len(engine.running[0].output) >= tokens)

    def undisturbed(self, prompt, budget):
        """What any engine of this stage says to `prompt` when nothing happens."""
        engine, state, ids = self.engines[0], chain(prompt)[-1], []
        while len(ids) < budget and not (ids and ids[-1] in engine.vocabulary.ends):
            token, _ = engine.voice.next_token(engine.checksum, "", state, engine.vocabulary.ends)
            ids.append(token)
            state = advance(state, token)
        return ids

    def url(self, cell):
        return self._served[cell].url

    async def fault(self, cell, **fault):
        async with httpx2.AsyncClient(verify=False, timeout=200) as client:
            assert (await client.post(f"{self.url(cell)}/faults", json=fault)).status_code == 200

    async def register(self, member=0, *, row=True, call_limit=64, harness="command", **sampling):
        """An execution whose token is `token-<member>`."""
        token = f"token-{member}"
        registration = RegisterExecution(
            execution=execution_name(member),
            run=RUN,
            token_sha256=hashlib.sha256(token.encode()).hexdigest(),
            attempt=1,
            seed=5,
            sampling=Sampling(**{"max_call_tokens": 1000, **sampling}),
            call_limit=call_limit,
            harness=harness,
        )
        if row:
            with self.database.begin() as connection:
                connection.execute(insert(schema.executions).values(execution_row_of(registration, member)))
        await self.control.register_execution(registration)
        return token

    async def ask(self, *messages, token="token-0", **body):
        """The reply of a chat completion that succeeded."""
        response = await self.post(*messages, token=token, **body)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, *messages, token="token-0", **body):
        return await self.client.post(
            f"/x/{token}/v1/chat/completions", json={"model": "policy", "messages": list(messages), **body}
        )

    async def calls(self, member=0):
        """The execution's recorded calls, once everything is written."""
        await self.proxy.recorder.flush()
        with self.database.connect() as connection:
            return calls_of(connection, execution_name(member))

    def segments(self, call):
        with self.database.connect() as connection:
            return segments_of(connection, call.call)

    def execution_row(self, member=0):
        with self.database.connect() as connection:
            table = schema.executions
            return connection.execute(select(table).where(table.c.execution == execution_name(member))).one()


def execution_row_of(registration, member):
    return {
        "execution": registration.execution,
        "run": RUN,
        "burst": "b",
        "group_index": 0,
        "member": member,
        "purpose": "train",
        "task": "t",
        "harness": "h",
        "client": "thin",
        "seed": registration.seed,
        "dispatch_version": 1,
        "sampling": registration.sampling.model_dump(),
        "call_limit": registration.call_limit,
        "token_sha256": registration.token_sha256,
        "attempt": 1,
        "state": "open",
        "workspace": "w",
        "model_calls": 0,
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture(scope="session")
def empty_records(tmp_path_factory):
    """A database with its tables: copying it is quicker than making one per test."""
    path = tmp_path_factory.mktemp("records") / "empty.db"
    open_database(f"sqlite:///{path}", create=True).dispose()
    return path


@pytest.fixture
def records(empty_records, tmp_path):
    """URL of a database of this test's own."""
    shutil.copy(empty_records, tmp_path / "records.db")
    return f"sqlite:///{tmp_path / 'records.db'}"


@pytest.fixture
async def stage(folder, records):
    async with Stage(folder, records) as stage:
        yield stage


@pytest.fixture
def script(tmp_path):
    """Writes a script file for the paced engine."""

    def write(*rules, default=None):
        path = tmp_path / "script.json"
        path.write_text(json.dumps({"rules": list(rules), "default": default}))
        return str(path)

    return write
