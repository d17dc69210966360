"""The three dialects as a test speaks them: one question, asked in any, and what came of it in one form.

Every event and every body is put through the official package's model, and the order of events is checked.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types import ErrorObject
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

DIALECTS = ("chat", "responses", "messages")
PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
BUDGET = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
RESPONSE_EVENT = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENT = TypeAdapter(RawMessageStreamEvent)


@dataclass
class Told:
    """`finish`: stop, calls, length, stop string, or None for an answer without an end. `kinds`: of the parts."""

    status: int
    raw: Any
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    finish: str | None = None
    usage: tuple[int, int] | None = None
    error: dict[str, Any] | None = None
    kinds: list[str] = field(default_factory=list)
    keep_alives: int = 0
    headers: Any = None

    @property
    def inputs(self):
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def tools_of(dialect):
    if dialect == "chat":
        return [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}]
    if dialect == "responses":
        return [{"type": "function", "name": "bash", "parameters": SCHEMA}]
    return [{"name": "bash", "input_schema": SCHEMA}]


def body_of(dialect, *messages, budget=None, tools=False, stream=False, **more):
    body = {"model": "policy", "input" if dialect == "responses" else "messages": list(messages), **more}
    if stream:
        body["stream"] = True
    if budget is not None:
        body[BUDGET[dialect]] = budget
    if tools:
        body["tools"] = tools_of(dialect)
    return body


async def ask(stage, dialect, *messages, token="token-0", headers=None, **options):
    """One call in a dialect; options as for `body_of`."""
    body = body_of(dialect, *messages, **options)
    response = await stage.client.post(f"/x/{token}/v1/{PATHS[dialect]}", json=body, headers=headers)
    streamed = response.headers["content-type"].startswith("text/event-stream")
    told = Told(response.status_code, response.text, headers=response.headers)
    if response.status_code != 200:
        body = response.json()
        if dialect == "messages":
            ErrorResponse.model_validate(body)
        else:
            ErrorObject.model_validate(body["error"])
        told.error = body["error"]
    elif streamed:
        _STREAMS[dialect](told, [block for block in response.text.split("\n\n") if block])
    else:
        _WHOLE[dialect](told, response.json())
    return told


def turn(dialect, told):
    """The answer as a harness sends it back: a list of messages or items."""
    if dialect == "chat":
        calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                 for i, (n, a) in zip(told.ids, told.calls, strict=True)]  # fmt: skip
        return [{"role": "assistant", "content": told.text or None, **({"tool_calls": calls} if calls else {})}]
    if dialect == "responses":
        message = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": told.text}]}]
        return (message if told.text else []) + [
            {"type": "function_call", "call_id": i, "name": n, "arguments": a}
            for i, (n, a) in zip(told.ids, told.calls, strict=True)
        ]
    blocks = [{"type": "text", "text": told.text}] if told.text else []
    blocks += [{"type": "tool_use", "id": i, "name": n, "input": json.loads(a or "{}")}
               for i, (n, a) in zip(told.ids, told.calls, strict=True)]  # fmt: skip
    return [{"role": "assistant", "content": blocks}]


def results(dialect, told, text):
    """What the tools gave back."""
    if dialect == "chat":
        return [{"role": "tool", "tool_call_id": i, "content": text} for i in told.ids]
    if dialect == "responses":
        return [{"type": "function_call_output", "call_id": i, "output": text} for i in told.ids]
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": text} for i in told.ids]}]


def _chat_whole(told, body):
    (choice,) = ChatCompletion.model_validate(body).choices
    said, message = body["choices"][0]["message"], choice.message
    told.text, told.reasoning = message.content or "", said.get("reasoning_content", "")
    for call in message.tool_calls or []:
        told.calls.append((call.function.name, call.function.arguments))
        told.ids.append(call.id)
    told.finish = {"tool_calls": "calls"}.get(choice.finish_reason, choice.finish_reason)
    told.usage = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])


def _chat_stream(told, blocks):
    done = blocks[-1] == "data: [DONE]"
    for block in blocks[: -1 if done else None]:
        if block.startswith(":"):
            told.keep_alives += 1
            continue
        data = json.loads(block.removeprefix("data: "))
        if "error" in data:
            told.error = data["error"]
            assert block == blocks[-1]
            return
        chunk = ChatCompletionChunk.model_validate(data)
        if chunk.usage is not None:
            assert not chunk.choices
            told.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            assert told.finish is None
            told.finish = {"tool_calls": "calls"}.get(choice.finish_reason, choice.finish_reason)
            told.text += choice.delta.content or ""
            told.reasoning += data["choices"][0]["delta"].get("reasoning_content") or ""
            for call in choice.delta.tool_calls or []:
                if call.id:
                    assert call.index == len(told.calls)
                    told.ids.append(call.id)
                    told.calls.append((call.function.name, call.function.arguments))
                else:
                    name, arguments = told.calls[call.index]
                    assert call.function.arguments
                    told.calls[call.index] = (name, arguments + call.function.arguments)
    assert done == (told.finish is not None)


def _items(told, items):
    for item in items:
        told.kinds.append(item.type)
        if item.type == "reasoning":
            told.reasoning += item.content[0].text
        elif item.type == "message":
            told.text += item.content[0].text
        else:
            told.calls.append((item.name, item.arguments if item.type == "function_call" else item.input))
            told.ids.append(item.call_id)


def _ended(told, response):
    _items(told, response.output)
    told.finish = "length" if response.status == "incomplete" else "calls" if told.calls else "stop"
    told.usage = (response.usage.input_tokens, response.usage.output_tokens)


def _responses_whole(told, body):
    response = Response.model_validate(body)
    assert response.status in ("completed", "incomplete")
    _ended(told, response)


def _responses_stream(told, blocks):
    kinds, deltas, done = [], {}, {}
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        raw = json.loads(data.removeprefix("data: "))
        assert (f"event: {raw['type']}", raw["sequence_number"]) == (name, number)
        if raw["type"] == "response.failed":
            told.error, told.text = raw["response"]["error"], "".join(deltas.values())
            assert block == blocks[-1]
            return
        event = RESPONSE_EVENT.validate_python(raw)
        kinds.append(event.type)
        if event.type.endswith(".delta"):
            deltas[event.item_id] = deltas.get(event.item_id, "") + event.delta
        elif event.type in ("response.output_text.done", "response.reasoning_text.done"):
            done[event.item_id] = event.text
        elif event.type == "response.function_call_arguments.done":
            done[event.item_id] = event.arguments
        elif event.type == "response.custom_tool_call_input.done":
            done[event.item_id] = event.input
    assert kinds[:2] == ["response.created", "response.in_progress"]
    told.keep_alives = kinds.count("response.in_progress") - 1
    assert {item: text for item, text in done.items() if text} == deltas
    for what in ("output_item", "content_part"):
        assert kinds.count(f"response.{what}.added") == kinds.count(f"response.{what}.done")
    if kinds[-1] in ("response.completed", "response.incomplete"):
        _ended(told, event.response)


def _messages_whole(told, body):
    message = Message.model_validate(body)
    for block in message.content:
        told.kinds.append(block.type)
        if block.type == "thinking":
            told.reasoning += block.thinking
        elif block.type == "text":
            told.text += block.text
        else:
            told.calls.append((block.name, json.dumps(block.input)))
            told.ids.append(block.id)
    told.finish = _STOPS[message.stop_reason]
    told.usage = (message.usage.input_tokens, message.usage.output_tokens)


def _messages_stream(told, blocks):
    index, started = -1, False
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        raw = json.loads(data.removeprefix("data: "))
        assert name == f"event: {raw['type']}"
        if raw["type"] == "ping":
            told.keep_alives += 1
            continue
        if raw["type"] == "error":
            told.error = raw["error"]
            assert block == blocks[-1]
            return
        event = MESSAGE_EVENT.validate_python(raw)
        assert (event.type == "message_start") == (number == 0)
        if event.type == "message_start":
            told.usage = (event.message.usage.input_tokens, 0)
        elif event.type == "content_block_start":
            index += 1
            assert (event.index, started) == (index, False)
            started = True
            told.kinds.append(event.content_block.type)
            if event.content_block.type == "tool_use":
                assert event.content_block.input == {}
                told.calls.append((event.content_block.name, ""))
                told.ids.append(event.content_block.id)
        elif event.type == "content_block_delta":
            assert (event.index, started) == (index, True)
            _block_delta(told, event.delta)
        elif event.type == "content_block_stop":
            assert (event.index, started) == (index, True)
            started = False
        elif event.type == "message_delta":
            assert not started
            told.finish = _STOPS[event.delta.stop_reason]
            told.usage = (told.usage[0], event.usage.output_tokens)
    assert (event.type == "message_stop") == (told.finish is not None)


def _block_delta(told, delta):
    if delta.type == "text_delta":
        assert (told.kinds[-1], bool(delta.text)) == ("text", True)
        told.text += delta.text
    elif delta.type == "thinking_delta":
        assert told.kinds[-1] == "thinking"
        told.reasoning += delta.thinking
    elif delta.type == "input_json_delta":
        assert (told.kinds[-1], bool(delta.partial_json)) == ("tool_use", True)
        name, arguments = told.calls[-1]
        told.calls[-1] = (name, arguments + delta.partial_json)


_STOPS = {"end_turn": "stop", "tool_use": "calls", "max_tokens": "length", "stop_sequence": "stop string", None: None}
_WHOLE = {"chat": _chat_whole, "responses": _responses_whole, "messages": _messages_whole}
_STREAMS = {"chat": _chat_stream, "responses": _responses_stream, "messages": _messages_stream}
