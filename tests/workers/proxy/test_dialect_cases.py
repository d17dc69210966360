"""Field cases at the edge, in every dialect they apply to, streamed and not."""

import pytest

from tests.workers.proxy.conftest import QUICK, Stage, padded, user
from tests.workers.proxy.spoken import BUDGET, DIALECTS, ask, results, turn

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
