"""Streams of an engine, whatever a server does to its side of the connection."""

import asyncio
import contextlib

import pytest

from infra.engine import streams as module
from infra.engine.streams import HttpStreams, StreamBroken

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Server:
    """Answers each request with the next of its replies: byte pieces, sent one by one, then `end`."""

    def __init__(self, *replies, end="keep", pause=0.0):
        self.replies, self.end, self.pause = list(replies), end, pause
        self.requests, self.connections, self.tasks = [], 0, []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self.connections += 1
        self.tasks.append(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _talk(self, reader, writer):
        while self.replies:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.requests.append((head, await reader.readexactly(length)))
            for piece in self.replies.pop(0):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(self.pause)
            if self.end == "close":
                break
            if self.end == "hang":
                await asyncio.sleep(3600)
        await asyncio.sleep(0)


async def read(streams):
    async with streams.post("/generate", b"{}") as answer:
        return answer.status, b"".join([part async for part in answer.parts()])


def streams_of(server, silence=60.0, **headers):
    return HttpStreams(server.url, headers, silence)


async def test_a_request_and_its_answer():
    async with Server([CHUNKED, chunk(b"data: 1\n"), chunk(b"data: 2\n"), b"0\r\n\r\n"]) as server:
        streams = streams_of(server, Authorization="Bearer k")
        assert await read(streams) == (200, b"data: 1\ndata: 2\n")
        await streams.close()
    ((head, body),) = server.requests
    assert head.startswith(b"POST /generate HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in head
    assert body == b"{}"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
async def test_bytes_cut_anywhere(size):
    """Field case 7: frames cut at arbitrary positions, head and chunk sizes among them."""
    whole = CHUNKED + chunk("data: 삼겹살\n".encode()) + chunk(b"data: [DONE]\n") + b"0\r\n\r\n"
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    async with Server(pieces, pause=0.0005) as server:
        streams = streams_of(server)
        assert await read(streams) == (200, "data: 삼겹살\ndata: [DONE]\n".encode())
        await streams.close()


async def test_a_connection_serves_one_request_after_the_other():
    reply = [CHUNKED + chunk(b"x") + b"0\r\n\r\n"]
    async with Server(reply, reply, reply) as server:
        streams = streams_of(server)
        for _ in range(3):
            assert await read(streams) == (200, b"x")
        assert server.connections == 1
        await streams.close()


async def test_an_answer_left_before_its_end_keeps_its_connection_if_the_end_comes_at_once(monkeypatch):
    """The reader knows which event is the last one; the bytes behind it come a moment later."""
    monkeypatch.setattr(module, "_GRACE_SECONDS", 60.0)
    end = [chunk(b"data: [DONE]\n"), b"0\r\n\r\n"]
    async with Server(*[[CHUNKED, chunk(b"x"), *end]] * 3, pause=0.01) as server:
        streams = streams_of(server)
        for _ in range(3):
            async with streams.post("/generate", b"{}") as answer:
                assert await anext(answer.parts()) == b"x"
            while streams._leaving:
                await asyncio.sleep(0.01)
        assert server.connections == 1
        await streams.close()


async def test_an_answer_left_early_ends_its_connection(monkeypatch):
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.01)
    async with Server([CHUNKED + chunk(b"x")], end="hang") as server:
        streams = streams_of(server)
        async with streams.post("/generate", b"{}") as answer:
            assert await anext(answer.parts()) == b"x"
        await asyncio.sleep(0.05)
        server.replies.append([CHUNKED + chunk(b"y") + b"0\r\n\r\n"])
        assert await read(streams) == (200, b"y")
        assert server.connections == 2
        await streams.close()


async def test_a_connection_that_was_idle_for_long_is_not_trusted(monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    reply = [CHUNKED + chunk(b"x") + b"0\r\n\r\n"]
    async with Server(reply, reply) as server:
        streams = streams_of(server)
        for _ in range(2):
            assert await read(streams) == (200, b"x")
            await asyncio.sleep(0.03)
        assert server.connections == 2
        await streams.close()


async def test_a_server_that_hung_up_in_between_is_called_anew():
    reply = [CHUNKED + chunk(b"x") + b"0\r\n\r\n"]
    async with Server(reply, reply, end="close") as server:
        streams = streams_of(server)
        for _ in range(2):
            assert await read(streams) == (200, b"x")
            while streams._idle and not streams._idle[-1].lost:
                await asyncio.sleep(0.01)
        assert server.connections == 2
        await streams.close()


async def test_refusals_keep_what_they_say():
    head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\ncontent-length: 4\r\n\r\nbusy"
    async with Server([head]) as server:
        streams = streams_of(server)
        async with streams.post("/generate", b"{}") as answer:
            assert (answer.status, answer.retry_after) == (429, "2")
            assert b"".join([part async for part in answer.parts()]) == b"busy"
        await streams.close()


async def test_without_a_length_the_end_of_the_connection_is_the_end():
    async with Server([HEAD + b"\r\n", b"data: 1\n"], end="close") as server:
        streams = streams_of(server)
        assert await read(streams) == (200, b"data: 1\n")
        await streams.close()


@pytest.mark.parametrize(
    ("pieces", "end", "why"),
    [
        ([CHUNKED, chunk(b"x")], "close", "closed"),
        ([HEAD + b"content-length: 9\r\n\r\n", b"x"], "close", "closed"),
        ([b"HTTP/1.1 200"], "close", "closed"),
        ([], "close", "closed"),
        ([b"SSH-2.0-OpenSSH\r\n"], "hang", "not HTTP"),
        ([CHUNKED, b"zz\r\n"], "hang", "not HTTP"),
        ([CHUNKED, chunk(b"x")], "hang", "silent"),
        ([], "hang", "silent"),
    ],
)
async def test_what_breaks_is_said(pieces, end, why):
    async with Server(pieces, end=end) as server:
        streams = streams_of(server, silence=0.3 if why == "silent" else 60.0)
        with pytest.raises(StreamBroken, match=why):
            await read(streams)
        await streams.close()


async def test_nobody_there():
    async with Server() as server:
        pass
    with pytest.raises(StreamBroken):
        await read(streams_of(server))
