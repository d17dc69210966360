"""Faults of engines that never reach a harness, and those that are the request's own (field cases 8, 17, 18, 23)."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from infra.engine import EngineClient, GenerateRequest, new_rid
from tests.workers.proxy.conftest import QUICK, Stage, until, user
from tests.workers.proxy.test_moves import ENDLESS, checked, streamed
from tests.workers.proxy.virtual import WireStreams
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.faults import Fault, FaultKind
from workers.cell.rollout.paced.routes import paced_app
from workers.cell.rollout.paced.settings import PacedSettings
from workflows.messages.errors import EngineUnavailable, InvalidRequest

FAULTY = [
    ({"kind": "torn", "after_tokens": 4}, "died"),
    ({"kind": "garbage"}, "died"),
    ({"kind": "misaligned", "after_tokens": 4}, "died"),
    ({"kind": "label", "after_tokens": 4}, "died"),
    ({"kind": "label", "label": "7", "after_tokens": 4}, "died"),
    ({"kind": "overrun", "tokens": 3}, "died"),
    ({"kind": "short", "after_tokens": 4}, "abort"),
    ({"kind": "refuse", "status": 404}, "died"),
    ({"kind": "refuse", "status": 401}, "died"),
    ({"kind": "stall"}, "died"),
]


@pytest.fixture
async def pair(request, folder, records):
    """Two engines, one execution; little patience with silence where it is to be noticed, else a stall would be it."""
    stalls = "stall" in request.node.name
    patience = {"first_token_seconds": 2.0 if stalls else 120.0, "engine_backoff_seconds": 3.0}
    settings = QUICK.model_copy(update=patience)
    async with Stage(folder, records, settings=settings) as stage:
        for _ in range(2):
            await stage.engine(**ENDLESS)
        await stage.register()
        yield stage


@pytest.mark.parametrize(("fault", "ended"), FAULTY, ids=[fault["kind"] for fault, _ in FAULTY])
async def test_one_bad_engine_is_not_noticed(pair, fault, ended):
    """It strikes wherever the request goes first; the other engine goes on from what was sound."""
    await pair.fault(1, **fault)
    call = await checked(pair, await streamed(pair, 25), 25)
    first, second = pair.segments(call)
    assert (first["engine"], first["ended"], second["engine"]) == ("cell-1", ended, "cell-0")
    assert first["output_tokens"] + second["output_tokens"] == 25
    await until(lambda: not pair.engines[1].running)
    await until(lambda: not pair.proxy.table.engines["cell-1"].unsettled)


@pytest.mark.parametrize("kind", ["close", "torn", "abort"])
@pytest.mark.parametrize("budget", [4, 60])
async def test_broken_off_right_behind_the_end_of_the_turn(pair, script, kind, budget):
    """All was said, only the finish is missing: nothing is sampled behind the end of a turn."""
    for engine in pair.engines:
        engine.reader = PacedEngine(engine.settings.model_copy(update={"script": script(default="abc")})).reader
    await pair.fault(1, kind=kind, after_tokens=4)
    reply = await pair.ask(user("go"), max_tokens=budget)
    assert reply["choices"][0]["message"]["content"] == "abc"
    assert reply["choices"][0]["finish_reason"] == "stop"
    (call,) = await pair.calls()
    assert (len(call.output_ids), call.finish) == (4, "stop")
    assert [segment["engine"] for segment in pair.segments(call)] == ["cell-1"]


async def test_several_tokens_in_a_chunk(pair):
    """Field case 17: one chunk carries 4 tokens with 4 log-probs."""
    await pair.fault(1, kind="clump", tokens=4)
    call = await checked(pair, await streamed(pair, 22), 22)
    assert len(pair.segments(call)) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_429_goes_to_another_engine(pair, form):
    """Field case 17: and the busy one is left alone for as long as it asks."""
    wait = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True) if form == "date" else "20"
    await pair.fault(1, kind="refuse", status=429, retry_after=wait)
    call = await checked(pair, await streamed(pair, 5), 5)
    assert [segment["engine"] for segment in pair.segments(call)] == ["cell-1", "cell-0"]
    left = pair.proxy.table.engines["cell-1"].free_at - asyncio.get_running_loop().time()
    assert 10 < left <= 20
    assert pair.engines[1].counts["aborted"] == 0  # it never had the request


async def test_429_of_the_only_engine_is_503_with_retry_after(folder, records):
    settings = QUICK.model_copy(update={"hold_seconds": 0.3})
    async with Stage(folder, records, settings=settings) as stage:
        await stage.engine(**ENDLESS)
        await stage.register()
        await stage.fault(0, kind="refuse", status=429, retry_after="30", times=9)
        response = await stage.post(user("go"), max_tokens=3)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")


async def test_what_the_request_itself_gets_wrong_is_not_tried_elsewhere(pair):
    """Field case 12: a deterministic refusal is the same everywhere."""
    for cell in range(2):
        await pair.fault(cell, kind="refuse", status=400, times=9)
    response = await pair.post(user("go"), max_tokens=3)
    assert response.status_code == 400
    (call,) = await pair.calls()
    assert [segment["ended"] for segment in pair.segments(call)] == ["refused"]
    assert pair.proxy.table.engines["cell-1"].failures == 0  # nothing is wrong with the engine


async def test_an_abort_that_gets_lost_is_sent_again(folder, records):
    settings = QUICK.model_copy(update={"abort_again_seconds": 0.2})
    async with Stage(folder, records, settings=settings) as stage:
        for _ in range(2):
            await stage.engine(tokens_per_second=10, **ENDLESS)
        await stage.register()
        await stage.fault(1, kind="lose_abort")
        asking = asyncio.create_task(streamed(stage, 200))
        await stage.speaking(1)
        await stage.reroute(1)
        assert (await stage.cancel(1)).still_running == 0
        assert stage.engines[1].counts["aborted"] == 1
        stage.speed(0, 2000)
        await checked(stage, await asking, 200)


async def test_our_aborts_hit_one_request_only():
    """Field case 18: engines match by prefix; our ids are of one length, and nothing shorter leaves the client."""
    engine = PacedEngine(PacedSettings(tokens_per_second=1))
    transport = httpx2.ASGITransport(app=paced_app(engine))
    async with (
        EngineClient("http://engine", vocabulary=1000, transport=transport) as client,
        httpx2.AsyncClient(transport=transport, base_url="http://engine") as direct,
    ):
        rids = [new_rid() for _ in range(3)]
        bodies = [
            GenerateRequest(rid=rid, input_ids=[5, 6], max_new_tokens=9, cache_key="k").body(1000) for rid in rids
        ]
        asking = [asyncio.create_task(direct.post("/generate", json={**body, "stream": False})) for body in bodies]
        await until(lambda: len(engine.running) == 3)
        for wrong in ("", rids[0][:8], rids[0] + "0", "ex-1"):
            with pytest.raises(InvalidRequest):
                await client.abort(wrong)
        await client.abort(rids[0])
        assert {generation.rid for generation in engine.running} == set(rids[1:])
        await direct.post("/abort_request", json={"abort_all": True})
        await asyncio.gather(*asking)


@pytest.mark.parametrize("status", [401, 403, 404, 405, 408, 429, 500, 502, 503])
async def test_an_engines_own_trouble_is_worth_another_engine(status):
    engine = PacedEngine(PacedSettings())
    transport = httpx2.ASGITransport(app=paced_app(engine))
    async with EngineClient("http://engine", vocabulary=1000, streams=WireStreams(transport)) as client:
        engine.faults.arm(Fault(kind=FaultKind.REFUSE, status=status))
        with pytest.raises(EngineUnavailable):
            async for _ in client.generate(
                GenerateRequest(rid=new_rid(), input_ids=[5], max_new_tokens=2, cache_key="k")
            ):
                pass
