"""Anthropic messages: answers, errors, token counts, models; built from the anthropic package's models.

A tool's input is told once it is complete: clients parse it while it grows, and break on what is not JSON. An input
that is no JSON object is told as `{"raw_arguments": "..."}`, so that the tool can refuse it and the model can see why.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from workers.proxy.answer import Event, Kind, merged
from workers.proxy.call import CallError, LiveCall, ModelRequest
from workers.proxy.dialect import wire
from workers.proxy.dialect.messages import RAW_ARGUMENTS
from workflows.messages.errors import ContextOverflow, InvalidRequest

KEEP_ALIVE = b'event: ping\ndata: {"type": "ping"}\n\n'
_HOLE = "\x00"
_ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
}


def tool_input(arguments: str) -> dict[str, Any]:
    """A tool's input from sampled argument text."""
    if not arguments.strip():
        return {}
    try:
        value = wire.loads(arguments.encode())
    except InvalidRequest:
        value = None
    return value if isinstance(value, dict) else {RAW_ARGUMENTS: arguments}


def stop_reason(call: LiveCall, called: bool) -> tuple[str, str | None]:
    """The reason and the stop sequence."""
    if call.finish == "length":
        return "max_tokens", None
    if call.answer.stopped_by is not None:
        return "stop_sequence", call.answer.stopped_by
    return ("tool_use" if called else "end_turn"), None


def usage(call: LiveCall, output: int | None = None) -> dict[str, Any]:
    """`input_tokens` is the whole prompt: a cache of ours costs nobody anything."""
    prompt, said, _ = wire.usage_counts(call)
    thought = call.answer.reasoning_tokens if output is None else 0
    details = {"output_tokens_details": {"thinking_tokens": thought}} if thought else {}
    return {
        **details,
        "input_tokens": prompt,
        "output_tokens": said if output is None else output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def whole(call: LiveCall, request: ModelRequest, model: str) -> dict[str, Any]:
    """The whole reply of a finished call."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, list[str]] = {}
    events = merged(call.take(0))
    for event in events:
        if event.kind is Kind.ARGUMENTS:
            arguments.setdefault(event.index, []).append(event.text)
    for event in events:
        if event.kind is Kind.TEXT:
            blocks.append({"type": "text", "text": event.text, "citations": None})
        elif event.kind is Kind.REASONING:
            blocks.append({"type": "thinking", "thinking": event.text, "signature": ""})
        elif event.kind is Kind.CALL:
            given = tool_input("".join(arguments.get(event.index, [])))
            blocks.append({"type": "tool_use", "id": call.call_id(event.index), "name": event.text, "input": given})
    called = any(block["type"] == "tool_use" for block in blocks)
    reason, sequence = stop_reason(call, called)
    return _dump("Message", {**_message(call, model), "content": blocks, "stop_reason": reason,
                             "stop_sequence": sequence, "usage": usage(call)})  # fmt: skip


class MessagesStream:
    """Writes one streamed reply. Every block is started and stopped exactly once; indices rise."""

    keep_alive = KEEP_ALIVE

    def __init__(self, call: LiveCall, request: ModelRequest, model: str) -> None:
        self._call, self._model = call, model
        self._index = -1
        self._open: Kind | None = None
        self._frame = (b"", b"")
        self._arguments: list[str] = []
        self._called = False

    def first(self) -> bytes:
        message = {**_message(self._call, self._model), "content": [], "stop_reason": None, "stop_sequence": None,
                   "usage": usage(self._call, 0)}  # fmt: skip
        return _event("RawMessageStartEvent", {"type": "message_start", "message": message})

    def more(self, events: Sequence[Event]) -> bytes:
        if len(events) > 1:
            return b"".join(map(self._told, merged(events)))
        return self._told(events[0]) if events else b""

    def last(self) -> bytes:
        reason, sequence = stop_reason(self._call, self._called)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        ending = {"type": "message_delta", "delta": delta, "usage": usage(self._call)}
        return (
            self._close()
            + _event("RawMessageDeltaEvent", ending)
            + _event("RawMessageStopEvent", {"type": "message_stop"})
        )

    def broken(self, error: CallError) -> bytes:
        """An answer that broke off: never a message_stop."""
        return b"event: error\ndata: " + wire.dumps(error_body(error)) + b"\n\n"

    def _told(self, event: Event) -> bytes:
        if event.kind in (Kind.TEXT, Kind.REASONING):
            opening = b"" if self._open is event.kind else self._close() + self._begin(event.kind)
            return opening + wire.frame(self._frame[0], event.text, self._frame[1])
        if event.kind is Kind.CALL:
            self._called = True
            block = {"type": "tool_use", "id": self._call.call_id(event.index), "name": event.text, "input": {}}
            return self._close() + self._start(Kind.CALL, block)
        if event.kind is Kind.ARGUMENTS:
            self._arguments.append(event.text)
            return b""
        return self._close()

    def _begin(self, kind: Kind) -> bytes:
        if kind is Kind.TEXT:
            block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": _HOLE}
        else:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            delta = {"type": "thinking_delta", "thinking": _HOLE}
        started = self._start(kind, block)
        self._frame = wire.split_at(self._delta(delta), _HOLE)
        return started

    def _start(self, kind: Kind, block: dict[str, Any]) -> bytes:
        self._index, self._open = self._index + 1, kind
        event = {"type": "content_block_start", "index": self._index, "content_block": block}
        return _event("RawContentBlockStartEvent", event)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        event = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return _event("RawContentBlockDeltaEvent", event)

    def _close(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        parts: list[bytes] = []
        if self._open is Kind.CALL and "".join(self._arguments).strip():
            arguments = "".join(self._arguments)
            given = tool_input(arguments)
            text = arguments if list(given) != [RAW_ARGUMENTS] else wire.dumps(given).decode()
            parts.append(self._delta({"type": "input_json_delta", "partial_json": text}))
        elif self._open is Kind.REASONING:
            parts.append(self._delta({"type": "signature_delta", "signature": ""}))
        self._open, self._arguments = None, []
        parts.append(_event("RawContentBlockStopEvent", {"type": "content_block_stop", "index": self._index}))
        return b"".join(parts)


def _message(call: LiveCall, model: str) -> dict[str, Any]:
    return {"id": f"msg_{call.call[:24]}", "type": "message", "role": "assistant", "model": model}


_TYPES = (
    "Message",
    "MessageTokensCount",
    "ModelInfo",
    "RawContentBlockDeltaEvent",
    "RawContentBlockStartEvent",
    "RawContentBlockStopEvent",
    "RawMessageDeltaEvent",
    "RawMessageStartEvent",
    "RawMessageStopEvent",
)


def load() -> None:
    """Import the models, and build what they put off until they are first filled."""
    for name in _TYPES:
        _type(name).model_rebuild()


@cache
def _type(name: str) -> Any:
    from anthropic import types

    return getattr(types, name)


def _dump(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return _type(name)(**value).model_dump(mode="json", exclude_unset=True)


def _event(name: str, value: Mapping[str, Any]) -> bytes:
    """One event, which the official model has to accept."""
    return b"event: " + value["type"].encode() + b"\ndata: " + wire.dumps(_dump(name, value)) + b"\n\n"


def error_body(error: CallError) -> dict[str, Any]:
    return _error(_ERROR_KINDS.get(error.status, "api_error"), error.message)


def refusal(error: InvalidRequest) -> tuple[int, dict[str, Any]]:
    """Status and body for a request that is refused."""
    return 400, _error("invalid_request_error", _overflow(error) if isinstance(error, ContextOverflow) else str(error))


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _overflow(error: ContextOverflow) -> str:
    if error.budget:
        return (
            f"input length and `max_tokens` exceed context limit: {error.prompt_tokens} + {error.budget} > "
            f"{error.limit}, decrease input length or `max_tokens` and try again"
        )
    return f"prompt is too long: {error.prompt_tokens} tokens > {error.limit} maximum"


def count(tokens: int) -> dict[str, Any]:
    """The answer of count_tokens."""
    return _dump("MessageTokensCount", {"input_tokens": tokens})


def models(model: str, context: int) -> dict[str, Any]:
    made = datetime.fromtimestamp(0, UTC)
    info = {"id": model, "type": "model", "display_name": model, "created_at": made, "lifecycle": "active",
            "max_input_tokens": context or None}  # fmt: skip
    return {"data": [_dump("ModelInfo", info)], "has_more": False, "first_id": model, "last_id": model}
