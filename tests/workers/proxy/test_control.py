"""The control API through its client: fences, idempotence, durability, errors."""

import httpx2
import pytest
from sqlalchemy import select

from infra.records import schema
from infra.routing import RoutingClient
from tests.workers.proxy.conftest import CHECKSUM, KEY, execution_name, user
from workflows.messages.burst import Sampling
from workflows.messages.errors import EngineUnavailable, Fenced, InvalidInput
from workflows.messages.routing import DoorChange, EngineEntry, HandoffDone, RegisterExecution

ENTRY = EngineEntry(engine="cell-0", cell=0, boot_epoch=2, url="http://127.0.0.1:9", slots=4, kv_tokens=1000)


def door(**changes):
    return DoorChange(**{"engine": "cell-0", "boot_epoch": 2, "open": True, "version": 1, "checksum": "c", **changes})


def saved(stage):
    with stage.database.connect() as connection:
        return connection.execute(select(schema.engines)).one()


async def test_an_engine_comes_with_a_closed_door_and_keeps_its_state(stage):
    await stage.control.put_engine(ENTRY)
    (state,) = (await stage.control.state()).engines
    assert (state.door_open, state.version, state.entry) == (False, None, ENTRY)
    await stage.control.change_door(door())
    await stage.control.put_engine(ENTRY)  # the same again
    (state,) = (await stage.control.state()).engines
    assert (state.door_open, state.version, state.checksum) == (True, 1, "c")
    assert (saved(stage).door, saved(stage).boot_epoch, saved(stage).version) == ("open", 2, 1)
    await stage.control.put_engine(ENTRY.model_copy(update={"boot_epoch": 3}))
    (state,) = (await stage.control.state()).engines
    assert (state.door_open, state.entry.boot_epoch) == (False, 3)
    assert (saved(stage).door, saved(stage).boot_epoch) == ("closed", 3)


async def test_older_boots_are_fenced(stage):
    await stage.control.put_engine(ENTRY)
    for act in (
        lambda: stage.control.put_engine(ENTRY.model_copy(update={"boot_epoch": 1})),
        lambda: stage.control.change_door(door(boot_epoch=1)),
        lambda: stage.control.engine_lost("cell-0", 1),
        lambda: stage.reroute(0, epoch=1),
        lambda: stage.cancel(0, epoch=3),
    ):
        with pytest.raises(Fenced):
            await act()
    assert (await stage.control.state()).engines[0].door_open is False


@pytest.mark.parametrize("missing", ["version", "checksum"])
async def test_a_door_opens_only_at_a_version_and_checksum(stage, missing):
    await stage.control.put_engine(ENTRY)
    with pytest.raises(InvalidInput) as refused:
        await stage.control.change_door(door(**{missing: None}))
    assert refused.value.field == missing
    await stage.control.change_door(door(open=False, version=None, checksum=None))
    await stage.control.change_door(door(open=False, version=None, checksum=None))


async def test_unknown_engines_and_leases(stage):
    with pytest.raises(InvalidInput):
        await stage.control.change_door(door())
    done = HandoffDone(lease="never", engine="cell-0", executions=("e",), arrived=True)
    await stage.control.handoff_done(done)
    await stage.control.end_execution("never/was")


async def test_wrong_keys_and_bodies(stage):
    transport = httpx2.ASGITransport(app=stage.proxy.admin)
    async with RoutingClient("http://proxy", "guess", transport=transport) as stranger:
        with pytest.raises(InvalidInput, match="admin key"):
            await stranger.state()
        assert await stranger.healthy()
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://proxy", headers=headers) as raw:
        body = ENTRY.model_dump() | {"slots": 0}
        reply = await raw.put("/admin/engines/cell-0", json=body)
        assert (reply.status_code, reply.json()["field"]) == (422, "slots")
        assert (await raw.put("/admin/engines/other", json=ENTRY.model_dump())).status_code == 422
        assert (await raw.get("/admin/state")).status_code == 200


async def test_a_proxy_that_is_away():
    async with RoutingClient("http://127.0.0.1:9", KEY) as client:
        with pytest.raises(EngineUnavailable):
            await client.state()
        assert not await client.healthy()


async def test_registration_is_idempotent_per_attempt(stage):
    await stage.engine()
    await stage.register()
    await stage.ask(user("a"), max_tokens=2)
    await stage.register(row=False)
    await stage.ask(user("b"), max_tokens=2)
    assert [call.sequence for call in await stage.calls()] == [0, 1]
    fields = {"execution": execution_name(), "run": "test", "seed": 5, "sampling": Sampling(), "call_limit": 9}
    later = RegisterExecution(token_sha256="b" * 64, attempt=2, **fields)
    await stage.control.register_execution(later)
    assert (await stage.post(user("c"))).status_code == 401
    with pytest.raises(Fenced):
        await stage.control.register_execution(RegisterExecution(token_sha256="a" * 64, attempt=1, **fields))
    assert (await stage.control.state()).executions == 1


async def test_the_door_is_the_law(stage):
    """Nothing reaches an engine whose door is closed, and what runs behind a door that closes goes on."""
    engine = await stage.engine(version=7, open_door=False)
    await stage.register()
    await stage.door(0, version=7)
    await stage.ask(user("a"), max_tokens=2)
    (call,) = await stage.calls()
    (segment,) = stage.segments(call)
    assert segment["version"] == 7
    assert engine.counts["requests"] == 1


async def test_kv_is_keyed_by_run_version_and_checksum(stage, monkeypatch):
    engine = await stage.engine()
    await stage.register()
    seen = []
    new_generation = engine.new_generation
    monkeypatch.setattr(engine, "new_generation", lambda body: seen.append(body) or new_generation(body))
    await stage.ask(user("a"), max_tokens=2, temperature=0, top_p=0.5, presence_penalty=1)
    (body,) = seen
    assert body["extra_key"] == f"test|1|{CHECKSUM}"
    assert body["session_id"] == execution_name()
    assert len(body["rid"]) == 36
    sampling = body["sampling_params"]
    assert (sampling["temperature"], sampling["top_p"], sampling["presence_penalty"]) == (1.0, 1.0, 0.0)
    assert set(stage.chat.end_of_turn_ids) == set(sampling["stop_token_ids"])


async def test_metrics(stage):
    await stage.engine()
    await stage.register()
    await stage.ask(user("a"), max_tokens=2)
    await stage.post(user("a"), token="guess")
    transport = httpx2.ASGITransport(app=stage.proxy.admin)
    async with httpx2.AsyncClient(transport=transport, base_url="http://proxy") as client:
        text = (await client.get("/metrics")).text
    assert 'gyre_proxy_calls_total{state="finished"} 1.0' in text
    assert 'gyre_proxy_refused_total{status="401"} 1.0' in text
    assert "gyre_proxy_added_seconds_count 1.0" in text
