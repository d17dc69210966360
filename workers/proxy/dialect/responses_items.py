"""OpenAI responses: the objects of an answer (items, the response itself), built from the openai package's models."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from workers.proxy.answer import Kind, merged
from workers.proxy.call import LiveCall, ModelRequest
from workers.proxy.dialect import wire
from workers.proxy.dialect.logprobs import Logprobs
from workers.proxy.dialect.responses_tools import Offered

_TYPES = (
    "Response",
    "ResponseCompletedEvent",
    "ResponseContentPartAddedEvent",
    "ResponseContentPartDoneEvent",
    "ResponseCreatedEvent",
    "ResponseCustomToolCallInputDeltaEvent",
    "ResponseCustomToolCallInputDoneEvent",
    "ResponseFailedEvent",
    "ResponseFunctionCallArgumentsDeltaEvent",
    "ResponseFunctionCallArgumentsDoneEvent",
    "ResponseInProgressEvent",
    "ResponseIncompleteEvent",
    "ResponseOutputItemAddedEvent",
    "ResponseOutputItemDoneEvent",
    "ResponseReasoningTextDeltaEvent",
    "ResponseReasoningTextDoneEvent",
    "ResponseTextDeltaEvent",
    "ResponseTextDoneEvent",
)


def load() -> None:
    """Import the models, and build what they put off until they are first filled (a quarter of a second)."""
    for name in _TYPES:
        _type(name).model_rebuild()


@cache
def _type(name: str) -> Any:
    from openai.types import responses

    return getattr(responses, name)


def dump(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return _type(name)(**value).model_dump(mode="json", exclude_unset=True, by_alias=True)


def framed(name: str, value: Mapping[str, Any]) -> bytes:
    """One event, which the official model has to accept."""
    return b"event: " + value["type"].encode() + b"\ndata: " + wire.dumps(dump(name, value)) + b"\n\n"


class Items:
    """The output items of a reply, as far as they are known."""

    def __init__(self, call: LiveCall, request: ModelRequest) -> None:
        self._call = call
        self._tools: Offered = request.echo.get("tools") or Offered()
        self.done: list[dict[str, Any]] = []

    def item_id(self, kind: Kind) -> str:
        prefix = {Kind.REASONING: "rs", Kind.TEXT: "msg", Kind.CALL: "fc"}[kind]
        return f"{prefix}_{self._call.call[:24]}{len(self.done):04x}"

    def is_custom(self, name: str) -> bool:
        return name in self._tools.customs

    def reasoning(self, item: str, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [{"type": "reasoning_text", "text": text}]
        return {"id": item, "type": "reasoning", "summary": [], "content": content, "status": status}

    def message(self, item: str, part: dict[str, Any] | None, status: str) -> dict[str, Any]:
        content = [] if part is None else [part]
        return {"id": item, "type": "message", "role": "assistant", "content": content, "status": status}

    def function(self, item: str, index: int, name: str, arguments: str, status: str) -> dict[str, Any]:
        namespace, there = self._tools.homes.get(name, (None, name))
        common: dict[str, Any] = {"id": item, "call_id": self._call.call_id(index), "name": there}
        if namespace is not None:
            common["namespace"] = namespace
        if self.is_custom(name):
            return {**common, "type": "custom_tool_call", "input": custom_input(arguments)}
        return {**common, "type": "function_call", "arguments": arguments, "status": status}


def custom_input(arguments: str) -> str:
    """What a free-form tool gets: the text in `input`, or whatever was sampled instead."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) and len(value) == 1 else arguments


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def usage(call: LiveCall) -> dict[str, Any]:
    prompt, output, cached = wire.usage_counts(call)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": call.answer.reasoning_tokens},
        "total_tokens": prompt + output,
    }


def response_of(
    call: LiveCall, request: ModelRequest, model: str, status: str, output: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The response object: in progress without usage, else what became of it."""
    ended = status in ("completed", "incomplete")
    return {
        "id": f"resp_{call.call}",
        "object": "response",
        "created_at": int(call.started_at),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": request.echo.get("instructions"),
        "metadata": request.echo.get("metadata") or {},
        "model": model,
        "output": list(output),
        "parallel_tool_calls": request.echo.get("parallel_tool_calls", True),
        "tool_choice": request.echo.get("tool_choice", "auto"),
        "tools": [],
        "max_output_tokens": request.echo.get("max_output_tokens"),
        "usage": usage(call) if ended else None,
    }


def status_of(call: LiveCall) -> str:
    return "incomplete" if call.finish == "length" else "completed"


def whole(call: LiveCall, request: ModelRequest, model: str, logprobs: Logprobs) -> dict[str, Any]:
    """The whole reply of a finished call."""
    items, arguments = Items(call, request), dict[int, str]()
    events = merged(call.take(0))
    for event in events:
        if event.kind is Kind.ARGUMENTS:
            arguments[event.index] = arguments.get(event.index, "") + event.text
    ended = {event.index for event in events if event.kind is Kind.CALL_END}
    texts = sum(event.kind is Kind.TEXT for event in events)
    for event in events:
        if event.kind is Kind.REASONING:
            items.done.append(items.reasoning(items.item_id(event.kind), event.text, "completed"))
        elif event.kind is Kind.TEXT:
            # With several texts it is not known which token made which: then the last tells of all.
            texts -= 1
            entries = logprobs.of(call, call.answer.text_positions) if request.logprobs and not texts else []
            items.done.append(items.message(items.item_id(event.kind), text_part(event.text, entries), "completed"))
        elif event.kind is Kind.CALL:
            status = "completed" if event.index in ended else "incomplete"
            given = arguments.get(event.index, "")
            items.done.append(items.function(items.item_id(event.kind), event.index, event.text, given, status))
    return dump("Response", response_of(call, request, model, status_of(call), items.done))
