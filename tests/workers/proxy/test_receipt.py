"""Who heard an answer: lost clients, the same request twice, restarts (nothing sampled or counted twice)."""

import asyncio
import gc
import socket
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.workers.proxy.conftest import execution_name, said, sse, text_of, until, user

SLOW = {"tokens_per_second": 3, "mean_output_tokens": 10**9}


async def give_up(stage, stream, budget, heard=0):
    """Ask, and hang up before the answer's end."""
    body = {"model": "policy", "messages": [user("go")], "max_tokens": budget, "stream": stream}
    path = "/x/token-0/v1/chat/completions"
    async with httpx2.AsyncClient(base_url=stage.client.base_url, verify=False, timeout=200) as client:
        if stream:
            async with client.stream("POST", path, json=body) as response:
                lines = response.aiter_lines()
                for _ in range(1 + 2 * heard):
                    await anext(lines)
        else:
            asking = asyncio.create_task(client.post(path, json=body))
            await stage.speaking(0, 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    stage.speed(0, 2000)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_nobody_received_is_no_target(stage, stream):
    engine = await stage.engine(**SLOW)
    await stage.register()
    await give_up(stage, stream, 30, heard=3)
    await until(lambda: engine.counts["requests"] == 1 and not engine.running)
    await until(lambda: not stage.proxy.executions.in_flight())
    (call,) = await stage.calls()
    assert (call.state, call.finish, len(call.output_ids)) == ("undelivered", "length", 30)
    assert stage.proxy.executions.in_flight() == {}


@pytest.mark.parametrize("stream", [True, False])
async def test_asking_again_while_it_runs_hears_the_same_call(stage, stream):
    engine = await stage.engine(**SLOW)
    await stage.register()
    await give_up(stage, stream, 40, heard=3)
    reply = await stage.ask(user("go"), max_tokens=40)
    (call,) = await stage.calls()
    assert reply["choices"][0]["message"]["content"] == stage.chat.decode(call.output_ids)
    assert reply["usage"]["completion_tokens"] == 40
    assert (call.state, engine.counts["requests"]) == ("finished", 1)
    assert stage.execution_row().model_calls == 1


async def test_asking_again_afterwards_hears_it_once_more(stage):
    engine = await stage.engine(**SLOW)
    await stage.register()
    await give_up(stage, False, 30)
    await until(lambda: not stage.proxy.executions.in_flight())
    events, done = sse((await stage.post(user("go"), max_tokens=30, stream=True)).text)
    (call,) = await stage.calls()
    assert done
    assert text_of(events) == stage.chat.decode(call.output_ids)
    assert (call.state, engine.counts["requests"]) == ("finished", 1)
    await stage.ask(user("go"), max_tokens=30)  # heard before: this one is a new sample
    assert [call.state for call in await stage.calls()] == ["finished", "finished"]
    assert stage.execution_row().model_calls == 2


async def test_answers_nobody_waits_for_cost_no_memory(stage):
    """They are kept by name, and read back when they are asked for after all."""
    await stage.engine(**SLOW)
    await stage.register()
    await give_up(stage, False, 30)
    await until(lambda: not stage.proxy.executions.in_flight())
    (execution,) = stage.proxy.executions.all()
    await until(lambda: gc.collect() >= 0 and not execution.remembered)
    reply = await stage.ask(user("go"), max_tokens=30)
    (call,) = await stage.calls()
    assert reply["choices"][0]["message"]["content"] == stage.chat.decode(call.output_ids)
    assert (call.state, execution.undelivered) == ("finished", {})


async def test_a_continued_answer_was_received(stage, script):
    """The socket said it was lost; the next request proves otherwise."""
    await stage.engine(script=script({"replies": ["one", "two"]}), tokens_per_second=1)
    await stage.register()
    await give_up(stage, False, 30)
    await until(lambda: not stage.proxy.executions.in_flight())
    assert [call.state for call in await stage.calls()] == ["undelivered"]
    await stage.ask(user("go"), said("one"), user("on"))
    first, second = await stage.calls()
    assert (first.state, second.state, second.parent_call) == ("finished", "finished", first.call)


async def test_the_record_is_durable_before_the_end_is_sent(stage, monkeypatch):
    """With the writer held up, the text flows but the end does not."""
    await stage.engine(mean_output_tokens=10**9)
    await stage.register()
    held = asyncio.Event()
    write = stage.proxy.recorder.write

    async def slow_write(statement):
        await held.wait()
        await write(statement)

    monkeypatch.setattr(stage.proxy.recorder, "write", slow_write)
    body = {"messages": [user("go")], "max_tokens": 5, "stream": True}
    async with stage.client.stream("POST", "/x/token-0/v1/chat/completions", json=body) as response:
        heard = ""
        async for line in response.aiter_lines():
            heard += line
            if len(text_of(sse(line)[0])) and not held.is_set():
                await asyncio.sleep(0.1)
                assert 'finish_reason": "' not in heard
                held.set()
    assert heard.endswith("data: [DONE]")


async def test_finished_calls_and_live_sessions_survive_a_restart(stage, script):
    await stage.engine(script=script({"replies": ["one", "two", "three"]}))
    await stage.register()
    await stage.ask(user("a"))
    await stage.stop_proxy()
    await stage.start_proxy()
    state = await stage.control.state()
    assert (state.executions, state.engines[0].door_open, state.engines[0].version) == (1, True, 1)
    assert state.engines[0].executions == 1
    reply = await stage.ask(user("a"), said("one"), user("b"))
    assert reply["choices"][0]["message"]["content"] == "two"
    first, second = await stage.calls()
    assert (second.sequence, second.parent_call, second.shared_tokens) == (1, first.call, len(first.all_ids))
    assert stage.execution_row().model_calls == 2


async def test_a_request_cut_by_a_restart_is_asked_again(stage):
    engine = await stage.engine(**SLOW)
    await stage.register()
    asking = asyncio.create_task(stage.post(user("go"), max_tokens=60))
    await until(lambda: engine.running)
    await stage.stop_proxy()
    with pytest.raises(httpx2.HTTPError):
        (await asking).raise_for_status()
    await stage.start_proxy()
    stage.speed(0, 2000)
    await stage.ask(user("go"), max_tokens=20)
    first, second = await stage.calls()
    assert (first.state, second.state) == ("failed", "finished")
    assert (second.parent_call, stage.execution_row().model_calls) == (None, 1)


async def test_an_unheard_answer_survives_a_restart(stage):
    engine = await stage.engine(**SLOW)
    await stage.register(call_limit=1)
    await give_up(stage, False, 20)
    await until(lambda: not stage.proxy.executions.in_flight())
    await stage.stop_proxy()
    await stage.start_proxy()
    reply = await stage.ask(user("go"), max_tokens=20)
    (call,) = await stage.calls()
    assert reply["choices"][0]["message"]["content"] == stage.chat.decode(call.output_ids)
    assert reply["usage"]["completion_tokens"] == 20
    assert (call.state, engine.counts["requests"]) == ("finished", 1)


async def test_a_request_may_arrive_in_any_pieces(stage, script):
    """Field case 7: bytes of the request cut anywhere, also inside a character."""
    await stage.engine(script=script({"match": "삼겹살", "replies": ["네"]}))
    await stage.register()
    body = '{"messages": [{"role": "user", "content": "삼겹살"}], "stream": true}'.encode()
    head = f"POST /x/token-0/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    address = urlsplit(str(stage.client.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(0, len(head + body), 7):
        writer.write((head + body)[at : at + 7])
        await writer.drain()
        await asyncio.sleep(0.001)
    answer = await reader.readuntil(b"[DONE]")
    writer.close()
    await writer.wait_closed()
    assert "네".encode() in answer
    (call,) = await stage.calls()
    assert list(call.prompt_ids) == stage.chat.render([user("삼겹살")])
    assert call.execution == execution_name()
