"""The proxy over two real SGLang engines: a request moved in mid-generation, greedy, gives the undisturbed ids."""

import asyncio

import pytest

from infra.engine import EngineClient
from infra.engine.fingerprint import engine_checksums, verify_weights
from infra.ports import free_ports
from tests.infra.tokenizer.conftest import write_folder
from tests.workers.cell.rollout.tiny_model import VOCABULARY, write_tiny_model
from tests.workers.proxy.conftest import KEY, QUICK, Stage, execution_name, sse, text_of, user
from workers.cell.rollout.command import EngineParameters
from workers.cell.rollout.server import EngineServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
BUDGET = 900


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("sglang") / "policy")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def servers(policy, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    started = [
        EngineServer(EngineParameters(policy, port, "1", KEY, context_tokens=1510, page_tokens=1), logs / f"{port}.log")
        for port in free_ports(2)
    ]

    async def ready():
        for server in started:
            async with EngineClient(server.parameters.url, vocabulary=VOCABULARY) as client:
                await server.ready(client)

    try:
        for server in started:
            server.start()
        asyncio.run(ready())
        yield started
    finally:
        for server in started:
            server.kill()


@pytest.fixture
async def real(policy, servers, records):
    async with Stage(policy, records, context=1500, settings=QUICK) as stage:
        stage.client.timeout = 600
        for cell, server in enumerate(servers):
            await stage.known(cell, server.parameters.url)
        for member in range(3):
            await stage.register(member, temperature=0)
        yield stage


async def endless(real):
    """A prompt whose greedy answer does not end by itself, with that answer: the undisturbed run."""
    for words in ("the file is there ", "hello world ", "assistant tool ", "there is a file ", "user "):
        reply = await real.ask(user(words * 8), token="token-1", max_tokens=BUDGET)
        if reply["usage"]["completion_tokens"] == BUDGET:
            return user(words * 8), (await real.calls(1))[-1]
    raise AssertionError("this random model always stops")


async def speaking(real, body):
    """A task that reads a whole answer, once some lines of it are here."""
    heard = asyncio.Queue()

    async def listen():
        text = ""
        async with real.client.stream("POST", "/x/token-0/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                text += line + "\n"
                heard.put_nowait(line)
        return text

    listening = asyncio.create_task(listen())
    for _ in range(24):
        await heard.get()
    return listening


async def test_a_move_in_mid_generation_is_not_seen(real):
    message, undisturbed = await endless(real)
    body = {"messages": [message], "max_tokens": BUDGET, "stream": True}
    listening = await speaking(real, body)
    source = int(real.proxy.table.routes[execution_name()][-1])
    plan = await real.reroute(source)
    assert [move.destination for move in plan.moves] == [f"cell-{1 - source}"]
    result = await real.cancel(source)
    assert (result.requests_moved, result.still_running) == (1, 0)
    loads = await real.proxy.table.engines[f"cell-{source}"].upstream.loads()
    assert (loads.running, loads.waiting) == (0, 0)
    events, done = sse(await listening)
    assert done

    (moved,) = await real.calls(0)
    assert moved.prompt_ids == undisturbed.prompt_ids
    assert moved.output_ids == undisturbed.output_ids
    gaps = [abs(a - b) for a, b in zip(moved.output_logprobs, undisturbed.output_logprobs, strict=True)]
    assert max(gaps) < 1e-3
    assert text_of(events) == real.chat.decode(moved.output_ids)
    first, second = real.segments(moved)
    assert (first["ended"], second["ended"]) == ("abort", moved.finish)
    assert 0 < first["output_tokens"] < len(moved.output_ids)
    assert first["output_tokens"] + second["output_tokens"] == len(moved.output_ids)
    assert moved.version_spans == ((1, len(moved.output_ids)),)


async def test_a_publish_under_a_running_request(real, servers, policy, tmp_path_factory):
    """`publish: keep_kv`: paused in place, updated, verified, and the same request goes on over the KV it holds."""
    message, _ = await endless(real)
    newer = write_folder(tmp_path_factory.mktemp("newer") / "policy")
    weights = write_tiny_model(newer, seed=1)
    older = write_folder(tmp_path_factory.mktemp("older") / "policy")
    write_tiny_model(older)
    await real.door(1, open_door=False)
    body = {"messages": [message], "max_tokens": BUDGET, "stream": True}
    async with EngineClient(servers[0].parameters.url, vocabulary=VOCABULARY, admin_key=KEY) as engine:
        listening = await speaking(real, body)
        await real.door(0, open_door=False, version=4)
        await engine.pause("in_place")
        await engine.update_weights_from_disk(str(newer), "4", flush_cache=False)
        verify_weights(await engine.weights_checksum(), engine_checksums(weights, tied_embeddings=True))
        await engine.resume()
        await real.door(0, version=4)
        _, done = sse(await listening)
        assert done
        call = (await real.calls(0))[-1]
        (first, said), (second, rest) = call.version_spans
        assert (first, second) == (1, 4)
        assert 0 < said < len(call.output_ids) == said + rest
        (segment,) = real.segments(call)
        assert (segment["version"], segment["mixed_kv_tokens"]) == (1, rest)
        assert all(value <= 0 for value in call.output_logprobs)
        # KV of the old weights, or of both, is nobody else's.
        await real.ask(message, token="token-2", max_tokens=2)
        (fresh,) = real.segments((await real.calls(2))[-1])
        assert (fresh["version"], fresh["cached_tokens"], fresh["mixed_kv_tokens"]) == (4, 0, 0)
        await engine.update_weights_from_disk(str(older), "1")
    await real.door(0, version=1)


async def test_turns_reuse_the_engines_cache(real):
    reply = await real.ask(user("hello world " * 10), token="token-2", max_tokens=60)
    answer = {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}
    await real.ask(user("hello world " * 10), answer, user("go on"), token="token-2", max_tokens=20)
    first, second = await real.calls(2)
    assert second.prompt_ids[: len(first.all_ids)] == first.all_ids
    (segment,) = real.segments(second)
    assert segment["cached_tokens"] >= len(first.all_ids) - 1
    assert all(value < 0 for value in second.output_logprobs)
