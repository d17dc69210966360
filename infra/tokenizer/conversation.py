"""One canonical form per chat message, whatever a harness sent.

Invariant: two messages that mean the same to the model have equal canonical forms, so they render to the same ids and
merge into one node of the trajectory tree; messages that differ for the model stay different (" " is not ""). Fields
the model never sees (`cache_control`, `refusal`, null extras a client library adds) are gone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workflows.messages.errors import InvalidRequest

# What a chat template may read. Everything else is a client library's own bookkeeping.
_TEXT_FIELDS = ("name", "tool_call_id", "reasoning_content")


def canonical(message: Mapping[str, Any], *, field: str = "messages") -> dict[str, Any]:
    """The canonical form of one chat message: `role`, `content` (always a str), and only what else is set.

    Null, absent, "", [] and a list of empty text parts are all the empty string; several text parts are joined
    without a separator. Tool-call arguments that are a JSON object become a mapping, anything else stays the raw text.

    Raises InvalidRequest, naming `field`, for a message without a role or with content that is not text.
    """
    if not isinstance(message, Mapping):
        raise InvalidRequest("a message must be an object", field=field)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest("a message needs a role", field=f"{field}.role")
    result: dict[str, Any] = {"role": role, "content": _text(message.get("content"), field=f"{field}.content")}
    for name in _TEXT_FIELDS:
        value = message.get(name)
        if value is not None and value != "":
            if not isinstance(value, str):
                raise InvalidRequest("expected text", field=f"{field}.{name}")
            result[name] = value
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise InvalidRequest("expected a list", field=f"{field}.tool_calls")
        result["tool_calls"] = [_tool_call(call, f"{field}.tool_calls.{i}") for i, call in enumerate(calls)]
    return result


def _text(content: Any, *, field: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest("expected text or a list of text parts", field=field)
    pieces: list[str] = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
            pieces.append(part["text"])
        else:
            raise InvalidRequest("only text parts are supported", field=f"{field}.{i}")
    return "".join(pieces)


def _tool_call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest("expected a function with a name", field=field)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _object_or_text(arguments)
    elif arguments is None:
        arguments = ""
    result: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    if call.get("id"):
        result["id"] = call["id"]
    return result


def _object_or_text(text: str) -> Any:
    """A JSON object as a mapping (what templates want); any other text, also cut-off JSON, exactly as it came."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
