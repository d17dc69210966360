"""The load generator against a server that cuts its answer into pieces of every size."""

import asyncio
import contextlib
import json

import pytest

from workers.bench.proxy.caller import Caller, Target
from workflows.messages.errors import Transient


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def choice(delta, finish=None):
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


WHOLE = [
    choice({"role": "assistant", "content": ""}),
    choice({"content": "one"}),
    choice({"content": " two"}),
    choice({}, "length"),
    event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 2}),
    b"data: [DONE]\n\n",
]


def chunked(parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def served(answer, *, piece=5, pause_before=None):
    """A server that sends `answer` in pieces; before the bytes `pause_before` it waits a little."""

    talks = []

    async def talk(reader, writer):
        talks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                for at in range(0, len(answer), piece):
                    if pause_before is not None and at <= answer.index(pause_before) < at + piece:
                        await asyncio.sleep(0.05)
                    writer.write(answer[at : at + piece])
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1], "/v1/chat/completions", {"x": "y"})
        await asyncio.wait(talks, timeout=120)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_an_answer_is_read_and_the_connection_used_again(piece):
    async with served(HEAD + chunked(WHOLE), piece=piece) as target:
        caller = Caller(target)
        for _ in range(2):
            heard = await caller.ask({"stream": True}, seconds=120)
            assert (heard.prompt_tokens, heard.output_tokens, heard.pieces, heard.finish) == (7, 2, 2, "length")
            assert 0 < heard.first_seconds <= heard.seconds
        caller.close()


async def test_the_empty_first_piece_is_not_the_first_text():
    async with served(HEAD + chunked(WHOLE), piece=1, pause_before=b"one") as target:
        caller = Caller(target)
        heard = await caller.ask({}, seconds=120)
        caller.close()
    assert heard.first_seconds >= 0.05


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno",
        HEAD + chunked(WHOLE[:3]),
        HEAD + chunked([*WHOLE[:4], WHOLE[5]]),
        HEAD + chunked([WHOLE[0], *WHOLE[3:]]),
    ],
    ids=["refused", "broken off", "no usage", "no text"],
)
async def test_anything_but_a_whole_answer_is_refused(answer):
    async with served(answer) as target:
        caller = Caller(target)
        with pytest.raises(Transient):
            await caller.ask({}, seconds=120)
        caller.close()
