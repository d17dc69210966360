"""A request whose engine leaves or fails goes on elsewhere, unnoticed (field cases 7, 8, 18, 19, 21 to 24)."""

import asyncio
import json

import pytest

from tests.workers.proxy.conftest import QUICK, Stage, execution_name, padded, sse, text_of, until, user
from workflows.messages.routing import HandoffDone

ENDLESS = {"mean_output_tokens": 10**9}
SLOW = {"tokens_per_second": 20, **ENDLESS}


async def two_engines(stage):
    """A quick cell-0 and a slow cell-1, where a first request goes."""
    await stage.engine(**ENDLESS)
    await stage.engine(**SLOW)
    await stage.register()


async def checked(stage, text, budget, finish="length"):
    """The one recorded call: exactly what an undisturbed run says, and exactly what the harness got."""
    (call,) = await stage.calls()
    assert list(call.output_ids) == stage.undisturbed(call.prompt_ids, budget)
    assert stage.chat.decode(call.output_ids) == text
    assert len(call.output_logprobs) == len(call.output_ids)
    assert sum(count for _, count in call.version_spans) == len(call.output_ids)
    assert (call.state, call.finish) == ("finished", finish)
    return call


async def streamed(stage, budget, **body):
    response = await stage.post(user("go"), stream=True, max_tokens=budget, **body)
    assert response.status_code == 200, response.text
    events, done = sse(response.text)
    assert done
    return text_of(events)


async def whole(stage, budget, **body):
    reply = await stage.ask(user("go"), max_tokens=budget, **body)
    assert reply["usage"]["completion_tokens"] == budget
    return reply["choices"][0]["message"]["content"]


@pytest.mark.parametrize("ask", [streamed, whole])
async def test_a_drained_engine_hands_its_request_over(stage, ask):
    await two_engines(stage)
    asking, leaving = asyncio.create_task(ask(stage, 400)), 1
    await stage.speaking(leaving)
    plan = await stage.reroute(leaving)
    (move,) = plan.moves
    assert (move.execution, move.destination, move.in_flight) == (execution_name(), f"cell-{1 - leaving}", True)
    assert await stage.reroute(leaving) == plan  # idempotent
    result = await stage.cancel(leaving)
    assert (result.requests_moved, result.still_running) == (1, 0)
    assert not stage.engines[leaving].running
    call = await checked(stage, await asking, 400)
    first, second = stage.segments(call)
    assert [first["ended"], second["ended"]] == ["abort", "length"]
    assert first["output_tokens"] + second["output_tokens"] == 400
    assert second["prompt_tokens"] == len(call.prompt_ids) + first["output_tokens"]
    assert first["rid"] != second["rid"]
    assert {len(first["rid"]), len(second["rid"])} == {36}
    assert first["seed"] != second["seed"]
    spoken = [part[name] for part in (first, second) for name in ("first_token_at", "last_token_at")]
    assert spoken == sorted(spoken)
    again = await stage.cancel(leaving)
    assert (again.requests_moved, again.still_running) == (1, 0)


@pytest.mark.parametrize("ask", [streamed, whole])
@pytest.mark.parametrize(
    ("fault", "ended"),
    [
        ({"kind": "close", "after_tokens": 9}, "died"),
        ({"kind": "close"}, "died"),
        ({"kind": "close_done", "after_tokens": 9}, "died"),
        ({"kind": "abort"}, "abort"),
        ({"kind": "abort", "after_tokens": 1}, "abort"),
        ({"kind": "abort", "after_tokens": 20}, "abort"),
        ({"kind": "wrong_length", "after_tokens": 9}, "died"),
        ({"kind": "bad_id", "after_tokens": 9}, "died"),
        ({"kind": "refuse", "status": 503}, "died"),
        ({"kind": "refuse", "status": 429}, "died"),
    ],
)
async def test_an_engines_fault_is_never_the_harness(stage, ask, fault, ended):
    """Field cases 8 (c, d) and 23: no early end is taken for an answer; the partial answer is kept and continued."""
    await stage.engine(**ENDLESS)
    await stage.engine(**ENDLESS)
    await stage.register()
    for cell in range(2):
        await stage.fault(cell, **fault)
    call = await checked(stage, await ask(stage, 45), 45)
    segments = stage.segments(call)
    *before, last = [segment["ended"] for segment in segments]
    # The second engine strikes too, unless the first has rested by then.
    assert (before in ([ended], [ended] * 2), last) == (True, "length")
    kept = fault.get("after_tokens", 0) if fault["kind"] not in ("wrong_length", "bad_id") else 0
    assert segments[0]["output_tokens"] >= kept


@pytest.mark.parametrize("ask", [streamed, whole])
async def test_an_end_without_done_is_an_end(stage, ask):
    """Field case 8 (a, b, e): what ends with a finish has ended, whatever follows or does not."""
    await stage.engine(**ENDLESS)
    await stage.register()
    await stage.fault(0, kind="no_done")
    call = await checked(stage, await ask(stage, 12), 12)
    assert [segment["ended"] for segment in stage.segments(call)] == ["length"]


async def test_a_silent_engine_is_given_up(folder, records):
    # However often a stall of this machine is taken for silence.
    patience = {"first_token_seconds": 1.0, "next_token_seconds": 1.0, "max_faults": 1000}
    settings = QUICK.model_copy(update=patience)
    async with Stage(folder, records, settings=settings) as stage:
        for _ in range(2):
            await stage.engine(**ENDLESS)
        await stage.register()
        for cell in range(2):
            await stage.fault(cell, kind="hang", after_tokens=7)
        await checked(stage, await streamed(stage, 30), 30)
        await until(lambda: not stage.engines[0].running and not stage.engines[1].running)


async def test_when_patience_is_over_it_is_503_with_retry_after(stage):
    await stage.engine(**ENDLESS)
    await stage.register()
    await stage.fault(0, kind="abort", times=50)
    response = await stage.post(user("go"), max_tokens=20)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert response.json()["error"]["code"] == "no_engine"
    (call,) = await stage.calls()
    assert (call.state, call.output_ids) == ("failed", ())
    assert len(stage.segments(call)) == QUICK.max_faults
    stage.engines[0].faults.clear()
    await stage.ask(user("go"), max_tokens=2)
    _, again = await stage.calls()
    assert (again.parent_call, again.fork_reason) == (None, None)  # the tree knows nothing of what failed


async def test_a_broken_off_stream_has_no_finish(stage):
    """Field case 8: once text is out, an error event; never a finish, never [DONE], nothing to train."""
    await stage.engine(**SLOW)
    await stage.register()
    await stage.fault(0, kind="abort", after_tokens=5)
    await stage.fault(0, kind="abort", times=50)
    events, done = sse((await stage.post(user("go"), stream=True, max_tokens=20)).text)
    assert not done
    assert events[-1]["error"]["code"] == "no_engine"
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
    (call,) = await stage.calls()
    assert call.state == "failed"
    assert stage.execution_row().model_calls == 0


async def test_a_late_abort_does_not_hit_the_next_attempt(stage):
    """Field case 19: away from the only engine and straight back to it, while its aborts travel slowly."""
    await stage.engine(**SLOW)
    await stage.register()
    await stage.fault(0, kind="late_abort", seconds=0.2)
    asking = asyncio.create_task(streamed(stage, 400))
    await stage.speaking(0)
    await stage.cancel(0)
    stage.speed(0, 2000)
    await stage.door(0, version=1)
    call = await checked(stage, await asking, 400)
    first, second = stage.segments(call)
    assert (first["engine"], second["engine"]) == ("cell-0", "cell-0")
    assert (first["ended"], second["ended"]) == ("abort", "length")


async def test_the_budget_is_that_of_one_request(folder, records):
    """Field case 21: prompt 100, budget 50, context 160; cut after 30, after 10 more, then the rest."""
    async with Stage(folder, records, context=160) as stage:
        await stage.engine(**ENDLESS)
        await stage.register()
        await stage.fault(0, kind="abort", after_tokens=30)
        await stage.fault(0, kind="abort", after_tokens=10)
        reply = await stage.ask(padded(stage, 100), max_tokens=50, seed=3)
        call = await checked(stage, reply["choices"][0]["message"]["content"], 50)
        assert [segment["output_tokens"] for segment in stage.segments(call)] == [30, 10, 10]
        assert [segment["prompt_tokens"] for segment in stage.segments(call)] == [100, 130, 140]
        assert reply["usage"]["prompt_tokens"] == 100
        assert reply["usage"]["completion_tokens"] == 50
        assert call.fields["requested"]["seed"] == 3
        assert len({segment["seed"] for segment in stage.segments(call)}) == 3


async def test_nothing_left_needs_no_engine(stage, monkeypatch):
    """Field case 21: cut after exactly the whole budget."""
    engine = await stage.engine(**ENDLESS)
    await stage.register()
    monkeypatch.setattr("workers.cell.rollout.paced.engine.finish_of", lambda output, budget, ends: None)
    await stage.fault(0, kind="abort", after_tokens=50)
    reply = await stage.ask(user("go"), max_tokens=50)
    assert reply["choices"][0]["finish_reason"] == "length"
    await checked(stage, reply["choices"][0]["message"]["content"], 50)
    assert engine.counts["requests"] == 1


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4, 5])
async def test_a_stop_string_across_the_cut(stage, script, cut):
    """Field case 22: stop=["END"], cut between any two of its letters."""
    path = script({"replies": ["Here is the plan. END of it"]})
    for _ in range(2):
        await stage.engine(script=path)
    await stage.register()
    before = len(stage.chat.encode_text("Here is the plan. "))
    for cell in range(2):
        await stage.fault(cell, kind="abort", after_tokens=before - 1 + cut)
    events, done = sse((await stage.post(user("go"), stream=True, stop=["END"])).text)
    assert done
    assert text_of(events) == "Here is the plan. "
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    (call,) = await stage.calls()
    assert stage.chat.decode(call.output_ids) == "Here is the plan. END"
    assert call.finish == "stop"
    assert not any(engine.running for engine in stage.engines)


TEXT = "삼겹살 is food, 👩‍🚀 flies"


@pytest.mark.parametrize("cut", range(1, 34, 5))
async def test_a_character_survives_the_move(stage, script, cut):
    """Field case 7: every piece of a multi-byte character may be the last before the cut."""
    path = script({"replies": [TEXT]})
    for _ in range(2):
        await stage.engine(script=path)
    await stage.register()
    for cell in range(2):
        await stage.fault(cell, kind="abort", after_tokens=cut)
    events, _ = sse((await stage.post(user("go"), stream=True)).text)
    assert text_of(events) == TEXT
    (call,) = await stage.calls()
    assert list(call.output_ids[:-1]) == stage.chat.encode_text(TEXT)
    assert not any("�" in text_of([event]) for event in events)


async def test_a_cut_off_character_is_replaced_once(stage, script):
    await stage.engine(script=script({"replies": ["ab삼"]}))
    await stage.register()
    reply = await stage.ask(user("go"), max_tokens=4)
    assert reply["choices"][0]["message"]["content"] == "ab�"
    events, _ = sse((await stage.post(user("go again"), stream=True, max_tokens=4)).text)
    assert text_of(events) == "ab�"


async def test_requests_wait_while_every_door_is_closed(stage):
    """Publish: nobody is refused, streams get headers and comments, and all go on afterwards."""
    engine = await stage.engine(open_door=False)
    await stage.register()
    asking = asyncio.create_task(stage.post(user("go"), stream=True, max_tokens=5))
    await until(lambda: stage.proxy.table.waiters)
    assert engine.counts["requests"] == 0
    await asyncio.sleep(0.3)
    assert not asking.done()
    await stage.door(0, version=1)
    events, done = sse((await asking).text)
    assert done
    await checked(stage, text_of(events), 5)


async def test_comments_keep_a_waiting_stream_alive(folder, records):
    settings = QUICK.model_copy(update={"headers_seconds": 0.05, "keepalive_seconds": 0.05})
    async with Stage(folder, records, settings=settings) as stage:
        await stage.engine(open_door=False)
        await stage.register()
        body = {"messages": [user("go")], "stream": True, "max_tokens": 3}
        async with stage.client.stream("POST", "/x/token-0/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            seen = [await anext(lines) for _ in range(6)]
            assert json.loads(seen[0][6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert ": waiting" in seen
            await stage.door(0, version=1)
            rest = [line async for line in lines]
        assert rest[-2] == "data: [DONE]"


async def test_a_wait_without_any_engine_is_bounded(folder, records):
    settings = QUICK.model_copy(update={"hold_seconds": 0.2})
    async with Stage(folder, records, settings=settings) as stage:
        await stage.register()
        response = await stage.post(user("go"))
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")


async def test_an_engine_gets_no_more_than_its_slots(stage):
    engine = await stage.engine(slots=2, **{**ENDLESS, "tokens_per_second": 150})
    for member in range(5):
        await stage.register(member)
    asking = [asyncio.create_task(stage.ask(user("go"), token=f"token-{m}", max_tokens=20)) for m in range(5)]
    most = 0
    while not all(task.done() for task in asking):
        most = max(most, len(engine.running) + len(engine.waiting))
        await asyncio.sleep(0.002)
    assert most == 2
    assert {(await task)["usage"]["completion_tokens"] for task in asking} == {20}


async def test_executions_spread_and_stay(stage):
    for _ in range(2):
        await stage.engine()
    for member in range(6):
        await stage.register(member)
        await stage.ask(user("a"), token=f"token-{member}", max_tokens=2)
    state = await stage.control.state()
    assert [engine.executions for engine in state.engines] == [3, 3]
    homes = dict(stage.proxy.table.routes)
    for member in range(6):
        await stage.ask(user("b"), token=f"token-{member}", max_tokens=2)
    assert stage.proxy.table.routes == homes


@pytest.mark.parametrize("arrived", [True, False, None])
async def test_a_moved_request_waits_for_its_kv(stage, arrived):
    """Bounded: with no word of it, the request recomputes."""
    await two_engines(stage)
    asking, source = asyncio.create_task(streamed(stage, 400)), 1
    await stage.speaking(source)
    await stage.reroute(source)
    await stage.cancel(source, kv=0.5 if arrived is None else 30.0)
    if arrived is not None:
        await asyncio.sleep(0.15)
        assert not stage.engines[1 - source].running
        done = HandoffDone(lease="lease", engine="cell", executions=(execution_name(),), arrived=arrived)
        await stage.control.handoff_done(done)
    call = await checked(stage, await asking, 400)
    assert [segment["kv_waited"] for segment in stage.segments(call)] == [False, True]


async def test_a_lost_engines_requests_go_on_at_once(stage):
    await two_engines(stage)
    asking, source = asyncio.create_task(streamed(stage, 400)), 1
    await stage.speaking(source)
    await stage.control.engine_lost(f"cell-{source}", 1)
    call = await checked(stage, await asking, 400)
    assert [segment["engine"] for segment in stage.segments(call)] == [f"cell-{source}", f"cell-{1 - source}"]
    assert (await stage.control.state()).engines[source].door_open is False
