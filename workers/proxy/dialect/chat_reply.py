"""OpenAI chat completions: answers, errors, models; built from the openai package's models.

Text, reasoning (`reasoning_content`), tool calls with their arguments as sampled, and log-probs.
"""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from workers.proxy.answer import Event, Kind, merged
from workers.proxy.broker import CallLimit
from workers.proxy.call import CallError, LiveCall, ModelRequest
from workers.proxy.dialect import wire
from workers.proxy.dialect.logprobs import Logprobs
from workflows.messages.errors import ContextOverflow, InvalidRequest

KEEP_ALIVE = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"
_HOLE = "\x00"


def load() -> None:
    """Import the models, and build what they put off until they are first filled."""
    from openai.types.chat import ChatCompletion

    for model in (ChatCompletion, _chunk_type()):
        model.model_rebuild()


def usage(call: LiveCall) -> dict[str, Any]:
    """Of one request, however many segments it took."""
    prompt, output, cached = wire.usage_counts(call)
    thought = call.answer.reasoning_tokens
    details = {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
    return {
        **details,
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
    from openai.types import Model

    entry = Model(id=model, object="model", created=int(time.time()), owned_by="opengyre")
    return {"object": "list", "data": [entry.model_dump(mode="json", exclude_unset=True)]}
