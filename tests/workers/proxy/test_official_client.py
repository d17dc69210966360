"""The official clients of OpenAI and Anthropic accept what the proxy answers, in all three dialects."""

import json

import anthropic
import openai
import pytest

from tests.workers.proxy.conftest import QUICK, Stage, padded, user

SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
CHAT_TOOL = {"type": "function", "function": {"name": "bash", "description": "run", "parameters": SCHEMA}}
CALLS = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>\n' * 2
SAID = "<think>\nlook first\n</think>\n\nI look.\n" + CALLS


@pytest.fixture
async def stage(folder, records):
    """One whose proxy soon gives up: its pauses between faults double."""
    async with Stage(folder, records, settings=QUICK.model_copy(update={"max_faults": 2})) as stage:
        yield stage


@pytest.fixture
async def clients(stage, script):
    """OpenAI's and Anthropic's client of one execution, whose policy calls two tools and then is done."""
    await stage.engine(script=script({"match": "go", "replies": [SAID, "It is done."]}), mean_output_tokens=10**9)
    await stage.register()
    base = f"{stage.client.base_url}/x/token-0"
    async with (
        openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0) as first,
        anthropic.AsyncAnthropic(base_url=base, api_key="any", max_retries=0) as second,
    ):
        yield first, second


async def test_chat(stage, clients):
    client, _ = clients
    messages = [user("go")]
    whole = await client.chat.completions.create(model="policy", messages=messages, tools=[CHAT_TOOL])
    said = whole.choices[0].message
    assert (said.content, said.reasoning_content) == ("I look.", "look first")  # pyright: ignore
    assert [(c.function.name, json.loads(c.function.arguments)) for c in said.tool_calls] == [
        ("bash", {"cmd": "ls"})
    ] * 2
    assert len({c.id for c in said.tool_calls}) == 2
    assert whole.choices[0].finish_reason == "tool_calls"
    messages += [
        {"role": "assistant", "content": said.content, "tool_calls": [c.model_dump() for c in said.tool_calls]},
        *({"role": "tool", "tool_call_id": c.id, "content": "a.py"} for c in said.tool_calls),
    ]
    last = await client.chat.completions.create(model="policy", messages=messages, tools=[CHAT_TOOL])
    assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("It is done.", "stop")
    first, second = await stage.calls()
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(first.prompt_ids), len(first.output_ids))
    assert second.parent_call == first.call


async def test_chat_stream(stage, clients):
    client, _ = clients
    async with client.chat.completions.stream(
        model="policy", messages=[user("go")], tools=[CHAT_TOOL], stream_options={"include_usage": True}
    ) as stream:
        async for _ in stream:
            pass
        whole = await stream.get_final_completion()
    said = whole.choices[0].message
    assert said.content == "I look."
    assert [(c.function.name, json.loads(c.function.arguments)) for c in said.tool_calls] == [
        ("bash", {"cmd": "ls"})
    ] * 2
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = await stage.calls()
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(call.prompt_ids), len(call.output_ids))


async def test_chat_logprobs(stage, clients):
    """Field case 17: one entry per output token, streamed or not."""
    client, _ = clients
    asked = {"model": "policy", "messages": [user("a")], "max_tokens": 9, "logprobs": True}
    whole = await client.chat.completions.create(**asked)
    (call,) = await stage.calls()
    entries = whole.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == pytest.approx(call.output_logprobs)
    assert "".join(entry.token for entry in entries) == whole.choices[0].message.content
    streamed = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    told = [c.logprobs.content for chunk in streamed for c in chunk.choices if c.logprobs]
    assert [entry for part in told for entry in part] == entries


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(stage, clients, stream):
    client, _ = clients
    tool = {"type": "function", "name": "bash", "parameters": SCHEMA, "strict": False}
    asked = {"model": "policy", "instructions": "be brief", "input": [user("go")], "tools": [tool]}
    response = await _response(client, stream, **asked)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    thought, message, *calls = response.output
    assert thought.content[0].text == "look first"
    assert message.content[0].text == "I look."
    assert [(c.name, json.loads(c.arguments), c.status) for c in calls] == [("bash", {"cmd": "ls"}, "completed")] * 2
    assert len({item.id for item in response.output}) == 4
    assert (response.status, response.incomplete_details) == ("completed", None)
    outputs = [{"type": "function_call_output", "call_id": c.call_id, "output": "a.py"} for c in calls]
    history = [item.model_dump(exclude_none=True) for item in response.output]
    last = await _response(client, stream, **{**asked, "input": [user("go"), *history, *outputs]})
    assert last.output[0].content[0].text == "It is done."
    first, second = await stage.calls()
    assert second.parent_call == first.call
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len(first.prompt_ids), len(first.output_ids))


async def _response(client, stream, **asked):
    if not stream:
        return await client.responses.create(**asked)
    async with client.responses.stream(**asked) as events:
        told = [event async for event in events]
    assert [event.sequence_number for event in told] == list(range(len(told)))
    return told[-1].response


async def test_responses_cut_by_length(stage, clients):
    client, _ = clients
    for stream in (False, True):
        response = await _response(client, stream, model="policy", input="a", max_output_tokens=5)
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.usage.output_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_messages(stage, clients, stream):
    _, client = clients
    tool = {"name": "bash", "description": "run", "input_schema": SCHEMA}
    system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    asked = {"model": "policy", "max_tokens": 400, "system": system, "tools": [tool]}
    said = await _message(client, stream, messages=[user("go")], **asked)
    assert [block.type for block in said.content] == ["thinking", "text", "tool_use", "tool_use"]
    thought, message, *calls = said.content
    assert (thought.thinking, message.text) == ("look first", "I look.")
    assert [(c.name, c.input) for c in calls] == [("bash", {"cmd": "ls"})] * 2
    assert (said.stop_reason, said.stop_sequence) == ("tool_use", None)
    results = [
        {"type": "tool_result", "tool_use_id": c.id, "content": [{"type": "text", "text": "a.py"}]} for c in calls
    ]
    history = [user("go"), {"role": "assistant", "content": said.content}, {"role": "user", "content": results}]
    last = await _message(client, stream, messages=history, **asked)
    assert (last.content[0].text, last.stop_reason) == ("It is done.", "end_turn")
    first, second = await stage.calls()
    assert second.parent_call == first.call
    assert (said.usage.input_tokens, said.usage.output_tokens) == (len(first.prompt_ids), len(first.output_ids))
    counted = await client.messages.count_tokens(model="policy", messages=[user("go")], system=system, tools=[tool])
    assert counted.input_tokens == len(first.prompt_ids)


async def _message(client, stream, **asked):
    if not stream:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as events:
        return await events.get_final_message()


async def test_models(clients):
    first, second = clients
    assert [model.id async for model in first.models.list()] == ["policy"]
    assert [(m.id, m.max_input_tokens) async for m in second.models.list()] == [("policy", 1000)]


async def test_errors_are_the_clients_own(stage, clients):
    first, second = clients
    long = padded(stage, 900)
    with pytest.raises(openai.BadRequestError) as refused:
        await first.chat.completions.create(model="policy", messages=[long], max_tokens=200)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        await first.responses.create(model="policy", input=[long], max_output_tokens=200)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(
        anthropic.BadRequestError, match=r"input length and `max_tokens` exceed context limit: 900 \+ 200 > 1000"
    ):
        await second.messages.create(model="policy", messages=[long], max_tokens=200)
    base = f"{stage.client.base_url}/x/guess"
    with pytest.raises(openai.AuthenticationError):
        await first.with_options(base_url=f"{base}/v1").responses.create(model="policy", input="a")
    with pytest.raises(anthropic.AuthenticationError):
        await second.with_options(base_url=base).messages.create(model="policy", messages=[user("a")], max_tokens=5)


async def test_no_engine_is_503_with_retry_after(stage, clients):
    first, second = clients
    await stage.fault(0, kind="abort", times=500)
    for ask, error in (
        (first.chat.completions.create(model="policy", messages=[user("a")], max_tokens=5), openai.InternalServerError),
        (first.responses.create(model="policy", input="b", max_output_tokens=5), openai.InternalServerError),
        (second.messages.create(model="policy", messages=[user("c")], max_tokens=5), anthropic.InternalServerError),
    ):
        with pytest.raises(error) as failed:
            await ask
        assert failed.value.status_code == 503
        assert failed.value.response.headers["retry-after"] == "5"
