"""Every reason to stop waiting for an engine, in virtual time; a busy stream drowns none of them."""

import asyncio

import pytest

from infra.engine import GenerateChunk
from tests.workers.proxy.virtual import run
from workers.proxy.engine_record import EngineRecord
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings
from workers.proxy.watch import Watch
from workflows.messages.routing import EngineEntry

SETTINGS = ProxySettings(first_token_seconds=30, next_token_seconds=10, abort_grace_seconds=5)
ENTRY = EngineEntry(engine="cell-0", cell=0, boot_epoch=1, url="http://e", slots=1, kv_tokens=8)


class CountedAborts:
    def __init__(self):
        self.rids = []

    def end(self, record, segment):
        self.rids.append(segment.rid)


async def chunks(*pauses):
    """A chunk after each pause, then silence."""
    for number, pause in enumerate(pauses, start=1):
        await asyncio.sleep(pause)
        yield GenerateChunk((5,), (-1.0,), "1", 3, 0, number)
    await asyncio.Event().wait()


async def read(stream, *, at=(), door_open=True):
    """Read until interrupted. `at`: (seconds, what happens to (segment, record)).

    Returns chunks read, seconds, why, and the aborts asked for.
    """
    loop, aborts = asyncio.get_running_loop(), CountedAborts()
    segment = Segment("c" * 32, 0, "e", "cell-0", 0, 1, 1, "c", 10)
    record = EngineRecord(ENTRY, upstream=None, door_open=door_open, version=1)
    for seconds, happens in at:
        loop.call_later(seconds, happens, segment, record)
    began, count = loop.time(), 0
    try:
        async with asyncio.timeout(None) as limit:
            watch = Watch(SETTINGS, record, segment, aborts, limit)
            async for _ in stream:
                watch.heard()
                count += 1
    except TimeoutError:
        watch.close()
        return count, round(loop.time() - began, 2), watch.why, len(aborts.rids)
    raise AssertionError("the stream came to its end")


def cut(segment, record):
    segment.cut()


def lose(segment, record):
    segment.lose()


def close_door(segment, record):
    record.door_open = False


def open_door(segment, record):
    record.door_open, record.opened_at = True, asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("pauses", "at", "expected"),
    [
        ((), [], (0, 30, "silent for 30 s", 0)),
        ((29, 9.9), [], (2, 48.9, "silent for 10 s", 0)),
        ((1,), [], (1, 11, "silent for 10 s", 0)),
        ((0,) * 1000, [(0, lose)], (None, 0, "the engine was lost", 0)),
        ((), [(3, lose)], (0, 3, "the engine was lost", 0)),
        ((), [(3, cut)], (0, 8, "", 1)),
        ((1,) * 100, [(3.5, cut), (4, cut)], (8, 8.5, "", 1)),  # what still arrives is kept; it is asked once
        ((1,) * 4, [(3.5, cut), (6, lose)], (4, 6, "the engine was lost", 1)),
        ((1,), [(2, close_door), (100, open_door)], (1, 110, "silent for 10 s", 0)),  # a pause is no hang
    ],
)
def test_reasons(pauses, at, expected):
    (count, seconds, why, aborts), _ = run(read(chunks(*pauses), at=at))
    assert count == expected[0] or expected[0] is None
    assert seconds == pytest.approx(expected[1], abs=0.02)
    assert (why, aborts) == expected[2:]


def test_what_was_cut_before_it_began_is_aborted_at_once():
    async def play():
        segment, aborts = Segment("c" * 32, 0, "e", "cell-0", 0, 1, 1, "c", 10), CountedAborts()
        segment.cut()
        async with asyncio.timeout(None) as limit:
            watch = Watch(SETTINGS, EngineRecord(ENTRY, upstream=None), segment, aborts, limit)
            await asyncio.sleep(0)
            watch.close()
        assert aborts.rids == [segment.rid]

    run(play())
