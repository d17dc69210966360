"""Field cases at the edge, in every dialect they apply to, streamed and not."""

import asyncio
import json

import pytest
from tokenizers import Tokenizer

from tests.workers.proxy.conftest import QUICK, Stage, padded, until, user
from tests.workers.proxy.spoken import BUDGET, DIALECTS, PATHS, ask, body_of, results, turn

ENDLESS = {"mean_output_tokens": 10**9}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls -la /tmp"}}\n</tool_call>'
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
both_ways = pytest.mark.parametrize("stream", [False, True])
OVERFLOW = {
    "responses": lambda prompt, asked: (
        "Your input exceeds the context window of this model. Please adjust your input and try again."
    ),
    "messages": lambda prompt, asked: (
        f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > 1000, "
        "decrease input length or `max_tokens` and try again"
        if asked
        else f"prompt is too long: {prompt} tokens > 1000 maximum"
    ),
    "chat": lambda prompt, asked: (
        f"This model's maximum context length is 1000 tokens. However, you requested {prompt + asked} tokens "
        f"({prompt} in the messages, {asked} in the completion). "
        "Please reduce the length of the messages or completion."
        if asked
        else "This model's maximum context length is 1000 tokens. However, your messages resulted in "
        f"{prompt} tokens. Please reduce the length of the messages."
    ),
}


@pytest.fixture
async def calling(stage, script):
    """A policy that calls a tool and then is done."""
    await stage.engine(script=script({"match": "go", "replies": [CALL, "done"]}, default="ok"))
    await stage.register()
    return stage


def empty_contents(dialect):
    """Ways in which a harness sends back a turn of tool calls without text."""
    if dialect == "chat":
        parts = [None, "", [], [{"type": "text", "text": ""}]]
        return [lambda t, c=c: [{**t[0], "content": c}] for c in parts] + [
            lambda t: [{key: value for key, value in t[0].items() if key != "content"}]
        ]
    if dialect == "responses":
        texts = ["", [], [{"type": "output_text", "text": ""}]]
        return [lambda t: t] + [lambda t, x=x: [{"role": "assistant", "content": x}, *t] for x in texts]
    blocks = [[], [{"type": "text", "text": ""}], [{"type": "thinking", "thinking": "", "signature": ""}]]
    return [lambda t, b=b: [{"role": "assistant", "content": [*b, *t[0]["content"]]}] for b in blocks]


@every_dialect
async def test_case_6_calls_without_text_are_one_turn_however_they_are_sent_back(calling, dialect):
    first = await ask(calling, dialect, user("go"), tools=True)
    assert (first.text, first.finish) == ("", "calls")
    sent = [way(turn(dialect, first)) for way in empty_contents(dialect)]
    for number, history in enumerate(sent):
        # A marker of its own keeps the requests apart: an equal one would be a retry.
        more = await ask(
            calling, dialect, user("go"), *history, *results(dialect, first, "a.py"), tools=True, user=str(number)
        )
        assert (more.status, more.text) == (200, "done")
    one, *others = await calling.calls()
    assert len({call.prompt_ids for call in others}) == 1
    assert others[0].parent_call == one.call
    assert others[0].prompt_ids[: len(one.all_ids)] == one.all_ids
    assert {call.fork_reason for call in others[1:]} == {"sampled again"}
    assert "None" not in calling.chat.decode(others[0].prompt_ids)


@every_dialect
async def test_case_6_a_turn_without_anything_is_recorded_and_goes_on(stage, script, dialect):
    await stage.engine(script=script({"match": "go", "replies": ["", "done"]}))
    await stage.register()
    for stream in (False, True):
        first = await ask(stage, dialect, user("go"), stream=stream)
        assert (first.status, first.text, first.calls, first.finish) == (200, "", [], "stop")
        assert first.usage is None or first.usage[1] == 1  # the end of the turn
    empty = {"role": "assistant", "content": ""}
    assert (await ask(stage, dialect, user("go"), empty, user("go on"))).text == "done"


@every_dialect
@both_ways
@pytest.mark.parametrize(
    ("fault", "finished"),
    [
        ({"kind": "no_done"}, True),
        ({"kind": "close", "after_tokens": 4}, False),
        ({"kind": "close_done", "after_tokens": 4}, False),
    ],
)
async def test_case_8_how_an_engines_stream_ends(stage, dialect, stream, fault, finished):
    """With a finish it has ended, whatever follows; without one it is continued, and no end is told that was none."""
    await stage.engine(**ENDLESS)
    await stage.register()
    await stage.fault(0, **fault)
    told = await ask(stage, dialect, user("go"), budget=12, stream=stream)
    (call,) = await stage.calls()
    assert (told.finish, told.text) == ("length", stage.chat.decode(call.output_ids))
    assert list(call.output_ids) == stage.undisturbed(call.prompt_ids, 12)
    assert len(stage.segments(call)) == (1 if finished else 2)


@every_dialect
async def test_case_8_an_answer_that_breaks_off_never_looks_finished(stage, dialect):
    await stage.engine(tokens_per_second=20, **ENDLESS)
    await stage.register()
    await stage.fault(0, kind="abort", after_tokens=5)
    await stage.fault(0, kind="abort", times=50)
    told = await ask(stage, dialect, user("go"), budget=20, stream=True)
    assert told.finish is None
    assert told.error["message"]
    assert told.text
    (call,) = await stage.calls()
    assert (call.state, call.finish) == ("failed", None)


@every_dialect
@both_ways
async def test_case_9_usage_is_what_was_recorded(stage, dialect, stream):
    await stage.engine(**ENDLESS)
    await stage.register()
    options = {"stream_options": {"include_usage": True}} if dialect == "chat" and stream else {}
    told = await ask(stage, dialect, user("go"), budget=7, stream=stream, **options)
    (call,) = await stage.calls()
    assert told.usage == (len(call.prompt_ids), len(call.output_ids)) == (len(call.prompt_ids), 7)


@every_dialect
@both_ways
@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ("Hi", ["text"]),
        (CALL, ["call"]),
        ("Hi\n" + CALL + "\n" + CALL, ["text", "call", "call"]),
        ("<think>\nhm\n</think>", ["thinking"]),
        ("<think>\nhm\n</think>\n\n" + CALL, ["thinking", "call"]),
        ("<think>\nhm\n</think>\n\nHi", ["thinking", "text"]),
    ],
)
async def test_case_10_only_the_parts_there_are(stage, script, dialect, stream, said, kinds):
    """No empty block before a call, no empty delta; starts and stops in pairs (which `ask` checks)."""
    await stage.engine(script=script(default=said))
    await stage.register()
    told = await ask(stage, dialect, user("go"), tools=True, stream=stream)
    assert told.text == ("Hi" if "text" in kinds else "")
    assert told.reasoning == ("hm" if "thinking" in kinds else "")
    assert told.inputs == [("bash", {"cmd": "ls -la /tmp"})] * kinds.count("call")
    assert told.finish == ("calls" if "call" in kinds else "stop")
    names = {"messages": {"text": "text", "call": "tool_use", "thinking": "thinking"},
             "responses": {"text": "message", "call": "function_call", "thinking": "reasoning"}}  # fmt: skip
    if dialect in names:
        assert told.kinds == [names[dialect][kind] for kind in kinds]


@every_dialect
@pytest.mark.parametrize(("prompt", "asked"), [(1001, None), (1000, None), (900, 200), (1000, 1)])
async def test_case_12_an_overflow_in_the_dialects_own_words(stage, dialect, prompt, asked):
    """With two engines up, and with one of them draining. Nothing is sent to an engine or recorded."""
    for _ in range(2):
        await stage.engine()
    await stage.register()
    for draining in (False, True):
        if draining:
            await stage.reroute(1)
        told = await ask(stage, dialect, padded(stage, prompt), budget=asked)
        assert told.status == 400
        assert told.error["message"] == OVERFLOW[dialect](prompt, asked)
        assert told.error["type"] == "invalid_request_error"
        if dialect != "messages":
            assert told.error["code"] == "context_length_exceeded"
    assert [engine.counts["requests"] for engine in stage.engines] == [0, 0]
    assert await stage.calls() == []


async def test_case_12_a_responses_stream_fails_with_the_code_its_clients_know(stage):
    await stage.engine()
    await stage.register()
    told = await ask(stage, "responses", padded(stage, 1001), stream=True)
    assert (told.status, told.finish, told.error["code"]) == (200, None, "context_length_exceeded")


@every_dialect
@pytest.mark.parametrize(("asked", "tokens"), [(None, 300), (300, 300), (7, 7)])
async def test_case_13_output_budgets(stage, dialect, asked, tokens):
    await stage.engine(tokens_per_second=20000, **ENDLESS)
    await stage.register()
    for stream in (False, True):
        told = await ask(stage, dialect, padded(stage, 700), budget=asked, stream=stream)
        assert told.finish == "length"
        assert told.usage in (None, (700, tokens))


@every_dialect
@pytest.mark.parametrize("asked", [0, -1, "nine", True, 1.5])
async def test_case_13_a_budget_that_is_none_is_named(stage, dialect, asked):
    await stage.engine()
    await stage.register()
    told = await ask(stage, dialect, user("a"), budget=asked)
    assert told.status == 400
    assert BUDGET[dialect] in told.error["message"]


@every_dialect
async def test_case_13_cut_by_length_without_any_text(stage, script, dialect):
    await stage.engine(script=script(default="<think>\nfar too long a thought"))
    await stage.register()
    for stream in (False, True):
        told = await ask(stage, dialect, user("go"), budget=5, stream=stream)
        assert (told.text, told.finish) == ("", "length")


async def test_case_14_count_tokens_is_the_length_of_the_real_prompt(stage):
    """Without max_tokens, with everything a request may hold, and while every engine drains."""
    await stage.engine(**ENDLESS)
    await stage.register()
    text, picture = {"type": "text", "text": "go"}, {"type": "base64", "media_type": "image/png", "data": "aaaa"}
    body = {
        "model": "policy",
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "bash", "description": "run", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": [text, {"type": "image", "source": picture}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [text]}]},
        ],
    }  # fmt: skip
    await stage.reroute(0)
    counted = await stage.client.post("/x/token-0/v1/messages/count_tokens?beta=true", json=body)
    assert counted.status_code == 200, counted.text
    assert await stage.calls() == []
    assert stage.engines[0].counts["requests"] == 0
    await stage.door(0, version=1)
    asked = await stage.client.post("/x/token-0/v1/messages?beta=true", json={**body, "max_tokens": 3})
    assert asked.status_code == 200, asked.text
    (call,) = await stage.calls()
    assert counted.json() == {"input_tokens": len(call.prompt_ids)}


async def test_case_17_several_choices_are_a_clear_400(stage):
    await stage.engine()
    await stage.register()
    told = await ask(stage, "chat", user("a"), n=2, stream=True)
    assert (told.status, told.error["param"]) == (400, "n")


@every_dialect
@both_ways
async def test_case_17_nobody_there_is_503_with_retry_after(folder, records, dialect, stream):
    async with Stage(folder, records, settings=QUICK.model_copy(update={"headers_seconds": 30})) as stage:
        await stage.engine(**ENDLESS)
        await stage.register()
        await stage.fault(0, kind="abort", times=50)
        told = await ask(stage, dialect, user("go"), budget=20, stream=stream)
    assert (told.status, told.headers["retry-after"]) == (503, "5")
    assert told.error["type"] == ("api_error" if dialect == "messages" else "server_error")


def sampled(stage, text):
    """How many tokens a scripted engine says `text` in."""
    return len(Tokenizer.from_file(str(stage.folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids)


async def two_engines(stage, script, said, cut):
    """Whichever gets the request drops it once it has said `cut`; the other one goes on."""
    file = script(default=said)
    for cell in range(2):
        await stage.engine(script=file)
        await stage.fault(cell, kind="abort", after_tokens=sampled(stage, cut))
    await stage.register()


@every_dialect
@both_ways
async def test_case_22_a_call_cut_inside_its_arguments_goes_on_elsewhere(stage, script, dialect, stream):
    await two_engines(stage, script, "Hi\n" + CALL, 'Hi\n<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls')
    told = await ask(stage, dialect, user("go"), tools=True, stream=stream)
    assert (told.text, told.inputs, told.finish) == ("Hi", [("bash", {"cmd": "ls -la /tmp"})], "calls")
    (call,) = await stage.calls()
    assert len(stage.segments(call)) > 1
    assert stage.chat.decode(call.output_ids) == "Hi\n" + CALL


@pytest.mark.parametrize("dialect", ["chat", "messages"])
@both_ways
async def test_case_22_a_stop_string_across_the_cut(stage, script, dialect, stream):
    await two_engines(stage, script, "Here is the plan END and more of it", "Here is the plan E")
    stop = {"stop": ["END"]} if dialect == "chat" else {"stop_sequences": ["END"]}
    told = await ask(stage, dialect, user("go"), stream=stream, **stop)
    assert (told.text, told.finish) == ("Here is the plan ", "stop" if dialect == "chat" else "stop string")
    if dialect == "messages":
        assert '"stop_sequence":"END"' in told.raw.replace('": "', '":"')


@every_dialect
@both_ways
async def test_case_7_a_character_cut_by_a_move_or_by_length(stage, script, dialect, stream):
    """Text and arguments arrive whole; what the budget cuts off is marked once, at the end."""
    said = '삼겹살 👩‍🚀\n<tool_call>\n{"name": "bash", "arguments": {"cmd": "삼겹살"}}\n</tool_call>'
    await two_engines(stage, script, said, "삼겹")
    for cell in range(2):
        await stage.fault(cell, kind="abort", after_tokens=1)  # one byte into the rest
    told = await ask(stage, dialect, user("go"), tools=True, stream=stream)
    assert (told.text, told.inputs, told.finish) == ("삼겹살 👩‍🚀", [("bash", {"cmd": "삼겹살"})], "calls")
    (call,) = await stage.calls()
    assert len(stage.segments(call)) > 2
    cut = await ask(stage, dialect, user("go on"), budget=sampled(stage, "삼겹") + 1, stream=stream)
    assert (cut.text, cut.finish) == ("삼겹\ufffd", "length")


@every_dialect
@both_ways
@pytest.mark.parametrize(
    ("said", "arguments", "finish"),
    [
        ('<tool_call>\n{"name": "bash", "arguments": {"cmd": "l', '{"cmd": "l', "length"),
        ('<tool_call>\n{"name": "bash", "arguments": {"cmd": oops}}\n</tool_call>', '{"cmd": oops}', "calls"),
    ],
)
async def test_a_call_that_is_no_json_is_told_as_it_is(stage, script, dialect, stream, said, arguments, finish):
    """Cut or malformed: never lost, never a crash, and the turn is recognised when it comes back."""
    await stage.engine(script=script({"match": "go", "replies": [said, "done"]}))
    await stage.register()
    budget = sampled(stage, said) if finish == "length" else None
    told = await ask(stage, dialect, user("go"), tools=True, stream=stream, budget=budget)
    expected = json.dumps({"raw_arguments": arguments}) if dialect == "messages" else arguments
    assert told.finish == finish
    assert [name for name, _ in told.calls] == ["bash"]
    assert told.calls[0][1].replace('":"', '": "') == expected
    more = await ask(stage, dialect, user("go"), *turn(dialect, told), *results(dialect, told, "no"), tools=True)
    assert more.status == 200
    first, second = await stage.calls()
    assert second.parent_call == first.call


@every_dialect
async def test_an_unfinished_call_before_its_name_is_text(stage, script, dialect):
    said = '<tool_call>\n{"name": "ba'
    await stage.engine(script=script(default=said))
    await stage.register()
    told = await ask(stage, dialect, user("go"), tools=True, budget=sampled(stage, said))
    assert (told.text, told.calls, told.finish) == (said, [], "length")


@every_dialect
async def test_silence_is_filled_in_the_dialects_own_way(folder, records, dialect):
    """While every engine drains: headers early, life that this dialect's clients count, and then the answer."""
    settings = QUICK.model_copy(update={"headers_seconds": 0.05, "keepalive_seconds": 0.05})
    async with Stage(folder, records, settings=settings) as stage:
        await stage.engine(open_door=False, **ENDLESS)
        await stage.register()
        asking = asyncio.create_task(ask(stage, dialect, user("go"), budget=4, stream=True))
        await asyncio.sleep(0.5)
        assert not asking.done()
        await stage.door(0, version=1)
        told = await asking
        assert (told.finish, told.error) == ("length", None)
        assert told.keep_alives >= 2


@every_dialect
@pytest.mark.parametrize(("choice", "calls"), [("none", 0), ("one", 1), ("many", 2)])
async def test_tool_choice(stage, script, dialect, choice, calls):
    await stage.engine(script=script(default=f"{CALL}\n{CALL}"))
    await stage.register()
    if dialect == "messages":
        options = {"none": {"tool_choice": {"type": "none"}}, "many": {"tool_choice": {"type": "auto"}},
                   "one": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}}[choice]  # fmt: skip
    else:
        options = {"none": {"tool_choice": "none"}, "many": {}, "one": {"parallel_tool_calls": False}}[choice]
    told = await ask(stage, dialect, user("go"), tools=True, **options)
    assert len(told.calls) == calls
    assert told.text == ("" if calls else f"{CALL}\n{CALL}")
    assert told.finish == ("calls" if calls else "stop")


@every_dialect
async def test_a_retry_hears_the_same_answer_streamed_or_not(stage, dialect):
    """Also while it is being sampled, and also in another way of delivery."""
    await stage.engine(tokens_per_second=50, **ENDLESS)
    await stage.register()
    first = asyncio.create_task(ask(stage, dialect, user("go"), budget=20, stream=True))
    await until(lambda: stage.engines[0].running)
    again = await ask(stage, dialect, user("go"), budget=20)
    assert again.text == (await first).text
    assert len(await stage.calls()) == 1


@every_dialect
async def test_two_agents_may_ask_the_same(stage, dialect):
    await stage.engine(tokens_per_second=50, **ENDLESS)
    await stage.register()
    await asyncio.gather(
        *(ask(stage, dialect, user("go"), budget=9, headers={"x-some-agent-id": name}) for name in ("one", "two"))
    )
    assert len(await stage.calls()) == 2


@every_dialect
async def test_tokens_in_every_place_a_client_may_put_them(stage, dialect):
    await stage.engine()
    await stage.register()
    body = body_of(dialect, user("a"), budget=2)
    for headers, status in (
        ({"authorization": "Bearer token-0"}, 200),
        ({"x-api-key": "token-0"}, 200),
        ({"x-api-key": "guess"}, 401),
        ({}, 401),
    ):
        response = await stage.client.post(f"/v1/{PATHS[dialect]}", json=body, headers=headers)
        assert response.status_code == status, response.text
        if status == 401:
            kind = "authentication_error" if dialect == "messages" else "invalid_request_error"
            assert response.json()["error"]["type"] == kind


@every_dialect
async def test_half_a_surrogate_pair_is_no_crash(stage, dialect):
    await stage.engine()
    await stage.register()
    body = json.dumps(body_of(dialect, user("a\ud83d"), budget=2))
    response = await stage.client.post(f"/x/token-0/v1/{PATHS[dialect]}", content=body.encode())
    assert response.status_code == 200, response.text


@every_dialect
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"a"', b"[" * 100_000])
async def test_what_is_no_request_is_a_400_in_the_dialect(stage, dialect, raw):
    await stage.register()
    response = await stage.client.post(f"/x/token-0/v1/{PATHS[dialect]}", content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_what_is_not_served_is_a_404_in_the_dialect_without_the_secret(stage):
    for path in ("/x/token-0/v1/responses/compact", "/x/token-0/v1/messages/batches", "/other"):
        response = await stage.client.post(path, json={})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        assert "token-0" not in response.text
        response = await stage.client.post(path, json={}, headers={"anthropic-version": "2023-06-01"})
        assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    assert (await stage.client.get("/x/token-0/v1/responses")).status_code == 405
