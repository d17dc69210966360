"""A stream that always has a next chunk ready must not drown what the control plane wants."""

import asyncio
from types import SimpleNamespace

import pytest

from infra.engine import GenerateChunk
from tests.workers.proxy.conftest import QUICK
from workers.proxy.dispatch import Watch
from workers.proxy.segment import Segment
from workflows.messages.errors import EngineUnavailable


class CountedAborts:
    def __init__(self):
        self.rids = []

    async def abort(self, rid):
        self.rids.append(rid)


async def torrent():
    for number in range(1, 10_000):
        yield GenerateChunk((5,), (-1.0,), "1", 3, 0, number)


@pytest.fixture
async def watched():
    segment, engine, stream = Segment("c" * 32, 0, "e", "cell-0", 0, 1, 1, "c", 10), CountedAborts(), torrent()
    dispatcher = SimpleNamespace(settings=QUICK, table=SimpleNamespace(engines={}))
    watch = Watch(dispatcher, segment, engine)
    assert (await watch.next(stream)).ids == (5,)
    yield segment, engine, watch, stream
    await watch.close(stream)


async def test_a_cut_is_asked_for_and_what_arrives_is_kept(watched):
    segment, engine, watch, stream = watched
    segment.cut.set()
    chunks = [await watch.next(stream) for _ in range(20)]
    assert engine.rids == [segment.rid]  # not once per chunk
    assert all(chunk is not None for chunk in chunks)


async def test_a_lost_engine_is_left_at_once(watched):
    segment, engine, watch, stream = watched
    segment.lost.set()
    await asyncio.sleep(0)  # signals take one turn of the loop
    with pytest.raises(EngineUnavailable, match="lost"):
        await watch.next(stream)
    assert engine.rids == []
