"""What the client makes of servers that misbehave. The real engine is driven in tests/workers/cell/rollout."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from infra.engine import EngineClient, EngineLoads, GenerateRequest, new_rid, released
from infra.engine.release import holding
from workflows.messages.errors import EngineUnavailable, InvalidRequest, StillHeld
from workflows.messages.kv import LinkerStats

TOKEN = {
    "output_ids": [5],
    "meta_info": {"completion_tokens": 1, "output_token_logprobs": [[-1.0, 5, None]], "finish_reason": None},
}


@asynccontextmanager
async def serving(answer: Callable[[str], bytes]) -> AsyncIterator[EngineClient]:
    """A server that gives one raw answer per connection and hangs up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(head.split()[1].decode()))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, EngineClient(f"http://127.0.0.1:{port}", vocabulary=512) as client:
        yield client


def plain(status: int, body: object) -> bytes:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


def stream(*events: object) -> bytes:
    lines = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + lines


async def collect(client: EngineClient, into: list[int] | None = None) -> None:
    request = GenerateRequest(new_rid(), [1, 2], 4, "run|0|x")
    async for chunk in client.generate(request):
        if into is not None:
            into += chunk.ids


async def test_a_stream_that_ends_early_is_an_unavailable_engine_after_its_tokens():
    async with serving(lambda path: stream(TOKEN)) as client:
        seen: list[int] = []
        with pytest.raises(EngineUnavailable, match="before its last token"):
            await collect(client, seen)
        assert seen == [5]


async def test_half_an_event_is_an_unavailable_engine():
    async with serving(lambda path: stream(TOKEN) + b'data: {"output_ids": [6\n\n') as client:
        with pytest.raises(EngineUnavailable):
            await collect(client)


async def test_nobody_listening_is_an_unavailable_engine():
    async with EngineClient("http://127.0.0.1:9", vocabulary=512) as client:
        assert not await client.healthy()
        with pytest.raises(EngineUnavailable):
            await collect(client)
        with pytest.raises(EngineUnavailable):
            await client.loads()


@pytest.mark.parametrize(
    ("status", "body", "raised"),
    [
        (400, {"error": {"message": "context"}}, InvalidRequest),
        (400, {"error": "unknown field"}, InvalidRequest),
        (500, "boom", EngineUnavailable),
        (503, {"error": "starting"}, EngineUnavailable),
        (429, {"error": "busy"}, EngineUnavailable),
    ],
)
async def test_statuses_map_to_the_exception_tree(status, body, raised):
    async with serving(lambda path: plain(status, body)) as client:
        with pytest.raises(raised):
            await collect(client)


async def test_a_refused_flush_means_somebody_still_holds_kv():
    async with serving(lambda path: plain(400, "2 requests are running")) as client:
        with pytest.raises(StillHeld, match="2 requests"):
            await client.flush_cache()


async def test_an_empty_or_foreign_request_id_is_never_sent_as_an_abort():
    asked: list[str] = []

    def answer(path: str) -> bytes:
        asked.append(path)
        return plain(200, "")

    async with serving(answer) as client:
        for rid in ("", "chatcmpl-1", "a" * 35):
            with pytest.raises(InvalidRequest):
                await client.abort(rid)
        assert asked == []
        await client.abort(new_rid())
        assert asked == ["/abort_request"]


def stats(**changes) -> LinkerStats:
    return LinkerStats(**(dict.fromkeys(LinkerStats.model_fields, 0) | changes))


@pytest.mark.parametrize(
    ("loads", "linker", "expected"),
    [
        (EngineLoads(0, 0, 0, 100), None, ""),
        (EngineLoads(0, 0, 0, 100), stats(used_pages=9), ""),
        (EngineLoads(1, 0, 0, 100), stats(), "1 running requests"),
        (EngineLoads(0, 2, 0, 100), stats(), "2 waiting requests"),
        (EngineLoads(0, 0, 16, 100), stats(), "16 used KV tokens"),
        (EngineLoads(0, 0, 0, 100), stats(pinned_pages=3, leases=1), "3 pinned pages, 1 KV leases"),
    ],
)
def test_released_means_that_nothing_at_all_is_held(loads, linker, expected):
    assert released(loads, linker) is (expected == "")
    assert holding(loads, linker) == expected


def test_paused_requests_count_as_waiting():
    load = {"num_running_reqs": 1, "num_waiting_reqs": 0, "num_used_tokens": 8, "max_total_num_tokens": 64}
    answer = {"loads": [load | {"queues": {"waiting": 0, "paused": 2}}]}
    assert EngineLoads.of_answer(answer) == EngineLoads(running=1, waiting=2, used_tokens=8, max_tokens=64)
