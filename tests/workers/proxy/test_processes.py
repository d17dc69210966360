"""Real processes: an engine and the proxy itself killed in mid-answer."""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import insert

from infra.ports import free_ports
from infra.records import schema
from infra.records.calls import calls_of, segments_of
from infra.records.database import open_database
from infra.routing import RoutingClient
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, Secrets
from infra.tokenizer import ChatTokenizer
from tests.workers.proxy.conftest import execution_name, execution_row_of, said, sse, text_of, user
from workflows.messages.burst import Sampling
from workflows.messages.routing import DoorChange, EngineEntry, RegisterExecution

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LONG = 300
"""Tokens of an answer that is not over before its server is killed: seven seconds of them."""


class Stack:
    """Two paced engines and a proxy, each a process; every one is ended by its id."""

    def __init__(self, folder, run_dir):
        self.folder, self.run_dir = folder, run_dir
        self.ports = free_ports(4)
        run_dir.mkdir()
        self.manifest = RunManifest(
            fleet=Fleet(run="test", model=str(folder), context_tokens=1000),
            root=str(ROOT),
            run_dir=str(run_dir),
            temporal_address="",
            proxy_port=self.ports[2],
            proxy_admin_port=self.ports[3],
            engine_ports=tuple(self.ports[:2]),
            actor_ports=(),
            linker_ports=(),
        )
        self.manifest.save()
        self.key = Secrets.of(run_dir, create=True).admin_key
        self.database = open_database(self.manifest.database_url, create=True)
        self.processes = {}

    def start(self, name):
        if name == "proxy":
            command = ["workers.proxy", "--run-dir", str(self.run_dir)]
        else:
            port = str(self.ports[int(name[-1])])
            command = ["workers.cell.rollout.paced", "--port", port, "--model", str(self.folder), "--version", "1"]
            command += ["--tokens-per-second", "40", "--mean-output-tokens", "1000000000", "--context", "1008"]
            command += ["--admin-api-key", self.key]
        log = (self.run_dir / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=log, stderr=log)
        log.close()

    def kill(self, name):
        process = self.processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    async def ready(self):
        self.control = RoutingClient(self.manifest.proxy_admin_url, self.key)
        async with httpx2.AsyncClient(verify=False) as client:
            urls = [self.manifest.engine_url(0), self.manifest.engine_url(1), self.manifest.proxy_admin_url]
            for url in urls:
                for _ in range(1200):
                    with contextlib.suppress(httpx2.HTTPError):
                        if (await client.get(f"{url}/health")).status_code == 200:
                            break
                    await asyncio.sleep(0.1)
                else:
                    raise AssertionError(f"{url} never answered")

    async def introduce(self):
        for cell in range(2):
            url = self.manifest.engine_url(cell)
            entry = EngineEntry(engine=f"cell-{cell}", cell=cell, boot_epoch=1, url=url, slots=8, kv_tokens=16384)
            await self.control.put_engine(entry)
            change = DoorChange(engine=f"cell-{cell}", boot_epoch=1, open=True, version=1, checksum="c")
            await self.control.change_door(change)
        registration = RegisterExecution(
            execution=execution_name(),
            run="test",
            token_sha256=hashlib.sha256(b"token-0").hexdigest(),
            attempt=1,
            seed=5,
            sampling=Sampling(max_call_tokens=1000),
            call_limit=64,
        )
        with self.database.begin() as connection:
            connection.execute(insert(schema.executions).values(execution_row_of(registration, 0)))
        await self.control.register_execution(registration)

    def calls(self):
        with self.database.connect() as connection:
            return calls_of(connection, execution_name())

    def segments(self, call):
        with self.database.connect() as connection:
            return segments_of(connection, call.call)

    def post(self, client, *messages, **body):
        url = f"{self.manifest.proxy_url}/x/token-0/v1/chat/completions"
        return client.post(url, json={"model": "m", "messages": list(messages), **body}, timeout=200)


@pytest.fixture
async def stack(folder, tmp_path):
    stack = Stack(folder, tmp_path / "run")
    for name in ("engine-0", "engine-1", "proxy"):
        stack.start(name)
    try:
        await stack.ready()
        await stack.introduce()
        yield stack
        await stack.control.close()
    finally:
        for name in list(stack.processes):
            stack.kill(name)
        stack.database.dispose()


async def test_an_engine_is_killed_in_mid_answer(stack, folder):
    chat = ChatTokenizer(folder)
    async with httpx2.AsyncClient(verify=False) as client:
        url, body = (
            f"{stack.manifest.proxy_url}/x/token-0/v1/chat/completions",
            {"model": "m", "messages": [user("go")]},
        )
        heard = ""
        async with client.stream("POST", url, json={**body, "stream": True, "max_tokens": LONG}, timeout=200) as answer:
            lines = answer.aiter_lines()
            while not text_of(sse(heard)[0]):
                heard += await anext(lines) + "\n"
            state = await stack.control.state()
            running = [engine.entry.cell for engine in state.engines if engine.running]
            stack.kill(f"engine-{running[0]}")
            heard += "".join([line + "\n" async for line in lines])
        events, done = sse(heard.rstrip())
        assert done
        undisturbed = (await stack.post(client, user("go"), max_tokens=LONG)).json()
    first, second = stack.calls()
    text = text_of(events)
    assert text == chat.decode(first.output_ids) == undisturbed["choices"][0]["message"]["content"]
    assert first.output_ids == second.output_ids
    assert [segment["ended"] for segment in stack.segments(first)] == ["died", "length"]
    assert sum(segment["output_tokens"] for segment in stack.segments(first)) == LONG
    assert stack.segments(first)[0]["output_tokens"] > 0
    assert (await stack.control.state()).engines[1 - running[0]].executions == 1


async def test_the_proxy_is_killed_in_mid_answer(stack, folder):
    """Finished calls are there, the live session goes on, the retry counts once."""
    async with httpx2.AsyncClient(verify=False) as client:
        reply = (await stack.post(client, user("a"), max_tokens=10)).json()
        text = reply["choices"][0]["message"]["content"]
        history = [user("a"), said(text), user("b")]
        asking = asyncio.create_task(stack.post(client, *history, max_tokens=LONG))
        while len(stack.calls()) < 2:
            await asyncio.sleep(0.05)
        stack.kill("proxy")
        with pytest.raises(httpx2.HTTPError):
            await asking
        await stack.control.close()
        stack.start("proxy")
        await stack.ready()
        state = await stack.control.state()
        assert [engine.door_open for engine in state.engines] == [True, True]
        assert state.executions == 1
        again = (await stack.post(client, *history, max_tokens=LONG)).json()
        assert again["usage"]["completion_tokens"] == LONG
        await stack.control.end_execution(execution_name())
        assert (await stack.post(client, *history)).status_code == 410
    first, cut, second = stack.calls()
    assert [call.state for call in (first, cut, second)] == ["finished", "failed", "finished"]
    assert second.parent_call == first.call
    assert second.prompt_ids[: len(first.all_ids)] == first.all_ids
    with stack.database.connect() as connection:
        row = connection.execute(schema.executions.select()).one()
    assert row.model_calls == 2
