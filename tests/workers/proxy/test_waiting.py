"""Requests wait where their order counts, for a bounded time, and what was decided outlives the proxy."""

import asyncio

import pytest

from infra.records.database import open_database
from tests.workers.proxy.conftest import execution_name, until, user
from tests.workers.proxy.test_moves import ENDLESS, SLOW, checked, streamed
from tests.workers.proxy.virtual import InlineRecorder, run
from workers.proxy.admission import Held
from workers.proxy.metrics import Metrics
from workers.proxy.placement import Demand, Engine, kept_free
from workers.proxy.settings import ProxySettings
from workers.proxy.table import RouteTable, Waiter
from workflows.messages.routing import DoorChange, EngineEntry

STEADY = {"tokens_per_second": 100, **ENDLESS}


async def test_the_order_is_that_of_progress(stage):
    """An execution with more calls behind it goes first, whenever it came."""
    engine = await stage.engine(slots=1, **STEADY)
    for member in range(3):
        await stage.register(member)
    history = [user("a"), {"role": "assistant", "content": ""}]
    first = await stage.ask(user("a"), token="token-2", max_tokens=2)
    history[1]["content"] = first["choices"][0]["message"]["content"]
    stage.speed(0, 5)
    busy = asyncio.create_task(stage.ask(user("long"), token="token-0", max_tokens=200))
    await until(lambda: engine.running)
    ended = []

    async def ask(member, *messages):
        await stage.ask(*messages, token=f"token-{member}", max_tokens=10)
        ended.append(member)

    waiting = [asyncio.create_task(ask(1, user("new")))]
    await until(lambda: len(stage.proxy.table.waiters) == 1)
    waiting.append(asyncio.create_task(ask(2, *history, user("b"))))
    await until(lambda: len(stage.proxy.table.waiters) == 2)
    assert (len(engine.running), len(engine.waiting)) == (1, 0)  # what waits, waits here
    stage.speed(0, 2000)
    await asyncio.gather(busy, *waiting)
    assert ended == [2, 1]


async def crowded(database):
    """A big request behind small ones that never leave room for it; when it went, in seconds."""
    loop, settings = asyncio.get_running_loop(), ProxySettings(oldest_first_seconds=5, sticky_wait_seconds=0)
    table = RouteTable(settings, InlineRecorder(database), lambda url: Hung(), Metrics())
    await table.put(EngineEntry(engine="cell-0", cell=0, boot_epoch=1, url="http://e", slots=4, kv_tokens=400))
    await table.door(DoorChange(engine="cell-0", boot_epoch=1, open=True, version=1, checksum="c"))

    async def served(name, calls, tokens, seconds):
        now = loop.time()
        waiter = Waiter(Held(name, calls, 0, now), name, None, tokens, False, 0, False, now, loop.create_future())
        segment = await table.acquire(waiter, 1000)
        began = loop.time()
        await asyncio.sleep(seconds)
        table.release(segment)
        return began

    async def small(number):
        while loop.time() < 60:
            await served(f"small-{number}", 9, 100, 1.0 + number / 10)

    crowd = [asyncio.ensure_future(small(number)) for number in range(6)]
    await asyncio.sleep(2)
    began = await served("big", 0, 390, 1.0)
    await asyncio.gather(*crowd)
    await table.close()
    return began - 2


class Hung:
    async def close(self):
        pass


def test_nobody_starves(monkeypatch, records):
    """The bound: its time, and then no longer than what already runs. Without keeping room it waits for ever."""
    database = open_database(records)
    waited, _ = run(crowded(database))
    assert 5 <= waited <= 5 + 1.5 + 0.2
    monkeypatch.setattr("workers.proxy.table.kept_free", lambda *_: None)
    starved, _ = run(crowded(database))
    assert starved > 55
    database.dispose()


def engine(name, **fields):
    plain = {
        "cell": int(name[-1]),
        "standalone": False,
        "door_open": True,
        "version": 1,
        "slots": 4,
        "kv_tokens": 100,
        "running": 0,
        "reserved_tokens": 0,
        "executions": 0,
    }
    return Engine(name=name, **{**plain, **fields})


@pytest.mark.parametrize(
    ("engines", "kept"),
    [
        ([engine("cell-0", running=3), engine("cell-1", running=1)], "cell-1"),
        ([engine("cell-0", running=1, reserved_tokens=90), engine("cell-1", running=1, reserved_tokens=20)], "cell-1"),
        ([engine("cell-0", running=3), engine("cell-1", door_open=False)], "cell-0"),
        ([engine("cell-0", running=3), engine("cell-1", version=0)], "cell-0"),
        ([engine("cell-0", running=3), engine("cell-1", free_at=9.0)], "cell-0"),
        ([engine("cell-0", running=3), engine("cell-1", grammars=False)], "cell-0"),
        ([engine("cell-0", door_open=False)], None),
    ],
)
def test_which_engine_is_kept_free(engines, kept):
    assert kept_free(engines, Demand(None, 1, 50, 0.0, constrained=True), 5.0) == kept


async def test_all_engines_drain_and_one_comes_back(stage):
    """Field case 22: in mid-stream, with nowhere to go for a while."""
    await stage.engine(**SLOW)
    await stage.engine(**SLOW)
    await stage.register()
    asking = asyncio.create_task(streamed(stage, 200))
    await stage.speaking(1)
    await stage.reroute(0, lease="a")
    plan = await stage.reroute(1, lease="b")
    assert [move.destination for move in plan.moves] == [""]
    await stage.cancel(0, lease="a")
    await stage.cancel(1, lease="b")
    assert (await stage.control.state()).waiting == 1
    stage.speed(0, 2000)
    await stage.door(0, version=1)
    call = await checked(stage, await asking, 200)
    assert [segment["engine"] for segment in stage.segments(call)] == ["cell-1", "cell-0"]


async def test_a_plan_outlives_the_proxy(stage):
    """Restarted between reroute and cancel: the lease still means the same moves, and requests wait for their KV."""
    for _ in range(2):
        await stage.engine(**ENDLESS)
    await stage.register()
    await stage.ask(user("a"), max_tokens=2)
    home = int(stage.proxy.table.routes[execution_name()][-1])
    plan = await stage.reroute(home)
    assert [move.destination for move in plan.moves] == [f"cell-{1 - home}"]
    await stage.stop_proxy()
    await stage.start_proxy()
    assert await stage.reroute(home) == plan
    assert stage.proxy.table.plan("lease") == plan
    await stage.cancel(home, kv=3.0)
    await stage.ask(user("b"), max_tokens=2)
    last = (await stage.calls())[-1]
    (segment,) = stage.segments(last)
    assert (segment["engine"], segment["kv_waited"]) == (f"cell-{1 - home}", True)


async def test_a_proxy_that_is_stopped_leaves_nothing_running(stage):
    engine = await stage.engine(tokens_per_second=5, disconnect_seconds=1e6, **ENDLESS)
    await stage.register()
    asking = asyncio.create_task(stage.post(user("go"), max_tokens=90))
    await stage.speaking(0)
    await stage.stop_proxy()
    assert (engine.running, engine.counts["aborted"]) == ([], 1)
    await asyncio.gather(asking, return_exceptions=True)
    await stage.start_proxy()


async def test_what_a_dead_proxy_left_running_is_aborted(stage):
    """Killed in mid-answer: the next life ends the request that nobody reads, once, and the engine is quiet."""
    engine = await stage.engine(tokens_per_second=5, disconnect_seconds=1e6, **ENDLESS)
    await stage.register()
    asking = asyncio.create_task(stage.post(user("go"), max_tokens=90))
    await stage.speaking(0)
    rid = engine.running[0].rid
    stage.proxy.aborts.end = lambda record, segment: None  # as if it had been killed
    await stage.proxy.recorder.flush()
    stage.proxy.recorder.post = lambda write: None
    await stage.stop_proxy()
    await asyncio.gather(asking, return_exceptions=True)
    assert [generation.rid for generation in engine.running] == [rid]
    await stage.start_proxy()
    await until(lambda: not engine.running)
    assert engine.counts["aborted"] == 1
    await until(lambda: not stage.proxy.table.engines["cell-0"].unsettled)
    (call,) = await stage.calls()
    assert call.state == "failed"
