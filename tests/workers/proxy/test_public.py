"""The public port end to end: tokens, dialect, records (field cases 9, 12, 13)."""

import asyncio
from itertools import pairwise

import pytest

from tests.workers.proxy.conftest import KEY, execution_name, padded, said, sse, text_of, user


async def test_a_call_is_answered_and_recorded(stage, script):
    await stage.engine(script=script({"match": "hello", "replies": ["hello world"]}))
    await stage.register()
    reply = await stage.ask(user("hello"), temperature=0.1)
    prompt = stage.chat.render([user("hello")])
    assert reply["choices"][0]["message"]["content"] == "hello world"
    assert reply["choices"][0]["finish_reason"] == "stop"
    (call,) = await stage.calls()
    assert list(call.prompt_ids) == prompt
    assert stage.chat.decode(call.output_ids) == "hello world"
    assert call.output_ids[-1] in stage.chat.end_of_turn_ids
    assert len(call.output_logprobs) == len(call.output_ids)
    assert call.version_spans == ((1, len(call.output_ids)),)
    assert (call.state, call.finish, call.sequence, call.parent_call) == ("finished", "stop", 0, None)
    assert call.fields["requested"] == {"temperature": 0.1}
    assert call.fields["imposed"]["temperature"] == 1.0
    usage = reply["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), len(call.output_ids))
    (segment,) = stage.segments(call)
    assert (segment["ended"], segment["engine"], segment["output_tokens"]) == ("stop", "cell-0", len(call.output_ids))
    assert segment["rid"] == call.call + "0000"
    row = stage.execution_row()
    assert row.model_calls == 1
    assert row.first_call_at == pytest.approx(call.fields["started_at"])


async def test_ids_of_earlier_turns_are_used_again(stage, script):
    await stage.engine(script=script({"replies": ["one", "two", "three"]}))
    await stage.register()
    messages = [{"role": "system", "content": "be brief"}, user("a")]
    for expected in ("one", "two", "three"):
        reply = await stage.ask(*messages)
        assert reply["choices"][0]["message"]["content"] == expected
        messages += [said(expected), user("more")]
    calls = await stage.calls()
    for earlier, later in pairwise(calls):
        assert later.prompt_ids[: len(earlier.all_ids)] == earlier.all_ids
        assert (later.parent_call, later.shared_tokens) == (earlier.call, len(earlier.all_ids))
        assert later.fork_reason is None
    segments = stage.segments(calls[2])
    assert segments[0]["cached_tokens"] >= len(calls[1].all_ids) - 1


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
async def test_usage_only_when_asked_in_one_last_chunk(stage, options, wanted):
    """Field case 9."""
    await stage.engine()
    await stage.register()
    events, done = sse((await stage.post(user("hello"), stream=True, max_tokens=12, **options)).text)
    (call,) = await stage.calls()
    assert done
    assert ["usage" in event for event in events] == [False] * (len(events) - 1) + [wanted]
    if wanted:
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["prompt_tokens"] == len(call.prompt_ids)
        assert events[-1]["usage"]["completion_tokens"] == len(call.output_ids)
    finishes = [c["finish_reason"] for event in events for c in event["choices"]]
    assert finishes == [None] * (len(finishes) - 1) + [call.finish]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert text_of(events) == stage.chat.decode(call.output_ids)


@pytest.mark.parametrize(
    ("prompt", "asked", "message"),
    [
        (1001, {}, "your messages resulted in 1001 tokens"),
        (1001, {"max_tokens": 5}, "your messages resulted in 1001 tokens"),
        (1000, {}, "your messages resulted in 1000 tokens"),
        (900, {"max_tokens": 200}, "you requested 1100 tokens (900 in the messages, 200 in the completion)"),
        (1000, {"max_tokens": 1}, "you requested 1001 tokens (1000 in the messages, 1 in the completion)"),
    ],
)
async def test_context_overflow_is_told_in_openais_words(stage, prompt, asked, message):
    """Field case 12: with two engines up, and with one of them draining."""
    await stage.engine()
    await stage.engine()
    await stage.register()
    for draining in (False, True):
        if draining:
            await stage.reroute(1)
        response = await stage.post(padded(stage, prompt), **asked)
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert error["param"] == "messages"
        assert error["message"].startswith("This model's maximum context length is 1000 tokens. However, ")
        assert message in error["message"]
    assert [engine.counts["requests"] for engine in stage.engines] == [0, 0]
    assert await stage.calls() == []
    assert (await stage.ask(user("still served"), max_tokens=2))["choices"]


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({}, 300),
        ({"max_tokens": None}, 300),
        ({"max_tokens": 300}, 300),
        ({"max_tokens": 80, "max_completion_tokens": 50}, 50),
        ({"max_completion_tokens": 7}, 7),
    ],
)
async def test_output_budgets(stage, asked, tokens):
    """Field case 13: absent or null is the context that is left; the smaller of both names wins."""
    await stage.engine(mean_output_tokens=10**9, tokens_per_second=20000)
    await stage.register()
    reply = await stage.ask(padded(stage, 700), **asked)
    assert reply["usage"] == {
        "prompt_tokens": 700,
        "completion_tokens": tokens,
        "total_tokens": 700 + tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("asked", [301, 100000])
async def test_a_budget_that_does_not_fit_is_the_overflow_error(stage, asked):
    """Field case 13: one policy for too large a budget."""
    await stage.engine()
    await stage.register()
    response = await stage.post(padded(stage, 700), max_tokens=asked)
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_the_imposed_budget_never_overflows(stage):
    await stage.engine(mean_output_tokens=10**9)
    await stage.register(max_call_tokens=40)
    assert (await stage.ask(padded(stage, 700), max_tokens=100000))["usage"]["completion_tokens"] == 40
    assert (await stage.ask(padded(stage, 980)))["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages.0.content.0"),
    ],
)
async def test_what_cannot_be_served_is_named(stage, body, field):
    await stage.engine()
    await stage.register()
    response = await stage.client.post("/x/token-0/v1/chat/completions", json={"messages": [user("a")], **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert await stage.calls() == []


async def test_tokens_open_and_close(stage):
    await stage.engine()
    token = await stage.register()
    assert (await stage.post(user("a"), token="guess")).status_code == 401
    bearer = {"authorization": f"Bearer {token}"}
    body = {"messages": [user("a")], "max_tokens": 2}
    assert (await stage.client.post("/v1/chat/completions", json=body, headers=bearer)).status_code == 200
    assert (await stage.client.post("/v1/chat/completions", json=body)).status_code == 401
    assert (await stage.client.get("/v1/models", headers=bearer)).json()["data"][0]["id"] == "policy"
    await stage.control.end_execution(execution_name())
    response = await stage.post(user("a"))
    assert (response.status_code, response.json()["error"]["code"]) == (410, "execution_closed")


async def test_no_admin_route_on_the_public_port(stage):
    headers = {"authorization": f"Bearer {KEY}"}
    for path in ("/admin/state", "/metrics", "/health"):
        assert (await stage.client.get(path, headers=headers)).status_code == 404


async def test_the_call_limit_ends_the_harness_cleanly(stage):
    await stage.engine()
    await stage.register(call_limit=2)
    for text in "ab":
        await stage.ask(user(text), max_tokens=2)
    response = await stage.post(user("c"), max_tokens=2)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "call_limit")
    assert len(await stage.calls()) == 2


async def test_a_client_that_hangs_up_while_it_asks_is_nobodys_fault(stage, capfd):
    await stage.engine()
    await stage.register()
    at = stage.client.base_url
    for sent in (b'{"mess', b""):
        _, client = await asyncio.open_connection(at.host, at.port)
        client.write(b"POST /x/token-0/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n" + sent)
        await client.drain()
        await asyncio.sleep(0.05)
        client.close()
    assert await stage.ask(user("a"), max_tokens=2)
    assert "Traceback" not in capfd.readouterr().err
    assert len(await stage.calls()) == 1


async def test_half_a_surrogate_pair_is_no_crash(stage):
    await stage.engine()
    await stage.register()
    raw = b'{"messages": [{"role": "user", "content": "a\\ud83d"}], "max_tokens": 2}'
    response = await stage.client.post("/x/token-0/v1/chat/completions", content=raw)
    assert response.status_code == 200, response.text


async def test_closing_an_execution_ends_what_runs(stage):
    await stage.engine(tokens_per_second=5, mean_output_tokens=10**9)
    await stage.register()
    asking = asyncio.create_task(stage.post(user("a")))
    while not stage.engines[0].running:
        await asyncio.sleep(0.01)
    await stage.control.end_execution(execution_name())
    assert (await asking).status_code == 410
    (call,) = await stage.calls()
    assert call.state == "failed"
    while stage.engines[0].running:
        await asyncio.sleep(0.01)
