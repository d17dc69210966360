"""OpenAI chat completions, streaming or not: text, reasoning (`reasoning_content`), tool calls, log-probs.

Requests are checked against the openai package's type, answers are built from its models
(docs/decisions/0045-wire-types.md). What is refused is named; what is merely ignored (sampling, which the burst
imposes) is recorded.
"""

import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from harness_adapters.protocol import CallRole
from workers.proxy.answer import Event, Kind, merged
from workers.proxy.broker import CallLimit
from workers.proxy.call import CallError, Grammar, LiveCall, ModelRequest
from workers.proxy.dialect import wire
from workers.proxy.dialect.logprobs import Logprobs
from workers.proxy.dialect.texts import parts_of
from workflows.messages.errors import ContextOverflow, InvalidRequest

NAME = "chat"
KEEP_ALIVE = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("max_tokens", "max_completion_tokens", "min_tokens", "seed", "stop", "logit_bias", "reasoning_effort"),
    *("tool_choice", "parallel_tool_calls", "response_format", "n"),
)
_READ = ("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "n", "logprobs", "top_logprobs")


def _params() -> Any:
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase

    return CompletionCreateParamsBase


CHECKED = wire.Checked(_params, _READ, {"model": "policy"})


def load() -> None:
    """Import the wire types now rather than at the first request, and build what they put off until then."""
    from openai.types.chat import ChatCompletion

    CHECKED.load()
    for model in (ChatCompletion, _chunk_type()):
        model.model_rebuild()


def parse(raw: Any, headers: Mapping[str, str], role: CallRole = CallRole.MAIN) -> ModelRequest:
    """Raises InvalidRequest that names the field this proxy cannot serve."""
    if isinstance(raw, Mapping) and isinstance(raw.get("messages"), list):
        # Null content is legal wherever clients send it, whatever the type says of the role.
        checked = [{**m, "content": ""} if isinstance(m, Mapping) and m.get("content") is None else m
                   for m in raw["messages"]]  # fmt: skip
        CHECKED.check({**raw, "messages": checked})
    body = {key: value for key, value in raw.items() if value is not None} if isinstance(raw, Mapping) else None
    if body is None:
        raise InvalidRequest("a JSON object is expected", field="body")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("a non-empty list is expected", field="messages")
    for name in ("functions", "audio", "prediction", "web_search_options"):
        if body.get(name):
            raise InvalidRequest("is not supported", field=name)
    if body.get("n") not in (None, 1):
        raise InvalidRequest("only 1 is supported", field="n")
    if body.get("top_logprobs"):
        raise InvalidRequest("only the sampled token's log-prob is kept: 0 is supported", field="top_logprobs")
    tools = _tools(body.get("tools"))
    allowed = _calls_allowed(body.get("tool_choice"))
    grammar = _grammar(body.get("response_format"))
    if grammar is not None and tools and allowed:
        raise InvalidRequest("cannot be combined with tools", field="response_format")
    return ModelRequest(
        dialect=NAME,
        model=str(body.get("model") or ""),
        messages=[_message(message, f"messages.{i}") for i, message in enumerate(messages)],
        stops=wire.stops_of(body.get("stop"), "stop"),
        asked_tokens=wire.budget_of(body, "max_tokens", "max_completion_tokens"),
        stream=body.get("stream") is True,
        include_usage=(body.get("stream_options") or {}).get("include_usage") is True,
        requested={name: body[name] for name in _SAMPLING if name in body},
        sha256=wire.identity(body, headers),
        tools=tools,
        least_tokens=_least(body.get("min_tokens")),
        grammar=grammar,
        role=role,
        calls_allowed=allowed and bool(tools),
        single_call=body.get("parallel_tool_calls") is False,
        logprobs=body.get("logprobs") is True,
    )


def _message(message: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    return {**message, "content": parts_of(message["content"], f"{field}.content")}


def _least(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest("a whole number of at least 0 is expected", field="min_tokens")
    return value


def _tools(tools: Any) -> list[Mapping[str, Any]] | None:
    result: list[Mapping[str, Any]] = []
    for i, tool in enumerate(tools or []):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise InvalidRequest("only function tools are supported", field=f"tools.{i}")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidRequest("a tool needs a name", field=f"tools.{i}.function.name")
        result.append(tool)
    return result or None


def _calls_allowed(choice: Any) -> bool:
    if choice in (None, "auto"):
        return True
    if choice == "none":
        return False
    raise InvalidRequest("the policy decides for itself: only auto and none are supported", field="tool_choice")


def _grammar(form: Any) -> Grammar | None:
    kind = form.get("type") if isinstance(form, Mapping) else "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json_schema", '{"type": "object"}')
    schema = (form.get("json_schema") or {}).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, Mapping):
        raise InvalidRequest("text, json_object and json_schema with a schema are supported", field="response_format")
    return Grammar("json_schema", json.dumps(schema))


def usage(call: LiveCall) -> dict[str, Any]:
    """Of one request, however many segments it took."""
    prompt, output, cached = wire.usage_counts(call)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def finish_reason(call: LiveCall, events: Sequence[Event]) -> Any:
    """length says that the answer was cut, whatever is in it."""
    if call.finish == "stop" and any(event.kind is Kind.CALL for event in events):
        return "tool_calls"
    return call.finish


def whole(call: LiveCall, request: ModelRequest, model: str, logprobs: Logprobs) -> dict[str, Any]:
    """The whole reply of a finished call."""
    from openai.types.chat import ChatCompletion

    events = call.take(0)
    said = call.answer_message()
    content = said["content"] if said["content"] or "tool_calls" not in said else None
    choice = {
        "index": 0,
        "message": {**said, "content": content, "refusal": None},
        "finish_reason": finish_reason(call, events),
        "logprobs": {"content": logprobs.more(call), "refusal": None} if request.logprobs else None,
    }
    reply = ChatCompletion(**{**_head(call, model, "chat.completion"), "choices": [choice], "usage": usage(call)})  # pyright: ignore[reportArgumentType]
    return reply.model_dump(mode="json", exclude_unset=True)


class ChatStream:
    """Writes one streamed reply. Frames are built once per reply; a delta costs one string's JSON."""

    keep_alive = KEEP_ALIVE

    def __init__(self, call: LiveCall, request: ModelRequest, model: str, logprobs: Logprobs) -> None:
        self._call, self._request, self._model, self._logprobs = call, request, model, logprobs
        self._frames = {
            kind: wire.split_at(self._chunk(delta), _HOLE)
            for kind, delta in (
                (Kind.TEXT, {"content": _HOLE}),
                (Kind.REASONING, {"reasoning_content": _HOLE}),
            )
        }
        self._arguments: tuple[int, bytes, bytes] = (-1, b"", b"")
        self._called = False

    def first(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def more(self, events: Sequence[Event]) -> bytes:
        if self._request.logprobs:
            return b"".join(self._with_logprobs(merged(events)))
        if len(events) == 1:
            return self._event(events[0])
        return b"".join(map(self._event, merged(events)))

    def last(self) -> bytes:
        """Finish, usage if it was asked for (in one chunk of its own), and the end of the stream."""
        finish = "tool_calls" if self._called and self._call.finish == "stop" else self._call.finish
        data = self._chunk({}, finish, self._logprobs.more(self._call) if self._request.logprobs else None)
        if self._request.include_usage:
            data += _data(
                {**_head(self._call, self._model, "chat.completion.chunk"), "choices": [], "usage": usage(self._call)}
            )
        return data + DONE

    def broken(self, error: CallError) -> bytes:
        """An answer that broke off: never a finish, never [DONE]."""
        return b"data: " + wire.dumps(error_body(error)) + b"\n\n"

    def _event(self, event: Event) -> bytes:
        frame = self._frames.get(event.kind)
        if frame is not None:
            return wire.frame(frame[0], event.text, frame[1])
        if event.kind is Kind.ARGUMENTS:
            if self._arguments[0] != event.index:
                data = self._chunk({"tool_calls": [{"index": event.index, "function": {"arguments": _HOLE}}]})
                self._arguments = (event.index, *wire.split_at(data, _HOLE))
            return wire.frame(self._arguments[1], event.text, self._arguments[2])
        if event.kind is Kind.CALL:
            self._called = True
            function = {"name": event.text, "arguments": ""}
            call = {"index": event.index, "id": self._call.call_id(event.index), "type": "function"}
            return self._chunk({"tool_calls": [{**call, "function": function}]})
        return b""

    def _with_logprobs(self, events: Sequence[Event]) -> list[bytes]:
        """The tokens so far go with the first event that tells of them."""
        parts: list[bytes] = []
        for event in events:
            data = self._event(event)
            entries = self._logprobs.more(self._call)
            if data and entries:
                chunk = wire.loads(data.removeprefix(b"data: "))
                chunk["choices"][0]["logprobs"] = {"content": entries, "refusal": None}
                data = _data(chunk)
            parts.append(data)
        return parts

    def _chunk(self, delta: dict[str, Any], finish: Any = None, entries: list[Any] | None = None) -> bytes:
        logprobs = {"content": entries, "refusal": None} if entries else None
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return _data({**_head(self._call, self._model, "chat.completion.chunk"), "choices": [choice]})


_HOLE = "\x00"


@cache
def _chunk_type() -> Any:
    from openai.types.chat import ChatCompletionChunk

    return ChatCompletionChunk


def _data(value: dict[str, Any]) -> bytes:
    """One event with a chunk in it, which the official model has to accept."""
    return b"data: " + wire.dumps(_chunk_type()(**value).model_dump(mode="json", exclude_unset=True)) + b"\n\n"


def _head(call: LiveCall, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{call.call}", "object": kind, "created": int(call.started_at), "model": model}


def error_body(error: CallError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}


def refusal(error: InvalidRequest) -> tuple[int, dict[str, Any]]:
    """Status and body for a request that is refused."""
    param, code, message = error.field, "invalid_request", str(error)
    if isinstance(error, ContextOverflow):
        param, code, message = "messages", "context_length_exceeded", _overflow(error)
    elif isinstance(error, CallLimit):
        code = "call_limit"
    return 400, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def _overflow(error: ContextOverflow) -> str:
    limit = f"This model's maximum context length is {error.limit} tokens. However, "
    if error.budget:
        return (
            f"{limit}you requested {error.prompt_tokens + error.budget} tokens ({error.prompt_tokens} in the messages, "
            f"{error.budget} in the completion). Please reduce the length of the messages or completion."
        )
    return f"{limit}your messages resulted in {error.prompt_tokens} tokens. Please reduce the length of the messages."


def models(model: str) -> dict[str, Any]:
    entry = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "opengyre"}
    return {"object": "list", "data": [entry]}
