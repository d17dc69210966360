"""Replies that are not streamed, while they wait: white space, which every JSON reader skips."""

import asyncio

import httpx2
import pytest

from tests.workers.proxy.conftest import QUICK, Stage, until, user
from tests.workers.proxy.spoken import DIALECTS, PATHS, ask, body_of

ENDLESS = {"mean_output_tokens": 10**9}
WAITING = {"whole_seconds": 0.1, "keepalive_seconds": 0.05}


@pytest.fixture
async def waiting(folder, records):
    async with Stage(folder, records, settings=QUICK.model_copy(update=WAITING)) as stage:
        await stage.engine(open_door=False, **ENDLESS)
        await stage.register()
        yield stage


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_reply_that_waits_shows_life_and_is_read_as_ever(waiting, dialect):
    pieces = []

    async def read():
        body = body_of(dialect, user("go"), budget=4)
        async with waiting.client.stream("POST", f"/x/token-0/v1/{PATHS[dialect]}", json=body) as response:
            pieces.append(response.status_code)
            async for piece in response.aiter_raw():
                pieces.append(piece)

    reading = asyncio.create_task(read())
    await until(lambda: len(b"".join(pieces[1:])) >= 2)
    await waiting.door(0, version=1)
    await reading
    assert pieces[0] == 200
    whole = b"".join(pieces[1:])
    assert whole.startswith(b"  ")
    assert whole.lstrip().startswith(b"{")
    told = await ask(waiting, dialect, user("go on"), budget=4)
    assert (told.status, told.finish) == (200, "length")
    assert [call.state for call in await waiting.calls()] == ["finished", "finished"]


async def test_a_quick_reply_is_what_it_was(stage):
    await stage.engine(**ENDLESS)
    await stage.register()
    response = await stage.post(user("go"), max_tokens=3)
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.content.startswith(b"{")


async def test_a_failure_before_any_life_has_its_own_status_and_behind_it_breaks_the_reply_off(folder, records):
    """A 200 without an answer would be taken for one: a connection that ends is tried again by every client."""
    for whole_seconds, hold_seconds in ((30.0, 0.1), (0.05, 3.0)):
        changes = {**WAITING, "whole_seconds": whole_seconds, "hold_seconds": hold_seconds}
        async with Stage(folder, records, settings=QUICK.model_copy(update=changes)) as stage:
            await stage.register(row=whole_seconds > 1)
            if whole_seconds > 1:
                assert (await stage.post(user("go"), max_tokens=3)).status_code == 503
            else:
                with pytest.raises(httpx2.RemoteProtocolError):
                    await stage.post(user("go"), max_tokens=3)
