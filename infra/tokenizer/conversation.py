"""One canonical form per chat message, whatever a harness sent, and what of it decides whether two are the same turn.

Invariants: two messages that mean the same to the model have equal canonical forms, so they render to the same ids;
messages that differ for the model stay different (" " is not ""). Fields the model never sees (`cache_control`,
`refusal`, null extras a client library adds) are gone, and so are the volatile lines below.

**Volatile lines** (declared rule): a system text that begins with `x-anthropic-billing-header: key=value; ...` loses
that line. It changes with every call and says nothing to the model. Nothing else is taken out, and nothing at all from
other roles.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from workflows.messages.errors import InvalidRequest

# What a chat template may read. Everything else is a client library's own bookkeeping.
_TEXT_FIELDS = ("name", "tool_call_id", "reasoning_content")
_SYSTEM = ("system", "developer")
_VOLATILE = re.compile(r"\Ax-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\s]*;)+[ \t]*\n*")
_THOUGHT = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)
_EXACT_FLOAT = 2.0**53
_DEEPEST = 100
"""Arguments nested deeper are no object to us but text: neither a template nor Python takes them at any depth."""
_NO_JSON = object()


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
    content = _text(message.get("content"), field=f"{field}.content", volatile=role in _SYSTEM)
    result: dict[str, Any] = {"role": role, "content": content}
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


def meaning(form: Mapping[str, Any]) -> str:
    """What decides whether two messages (in canonical form) are the same turn, as text to compare.

    Of an assistant's message: its text without outer white space (a blank text still differs from none), its calls
    with arguments as JSON values; not its reasoning, which harnesses drop, keep or empty. Of any other: everything.
    """
    if form["role"] == "assistant":
        text = _THOUGHT.sub("", form["content"], count=1)
        kept: dict[str, Any] = {
            "role": "assistant",
            "content": text.strip() or (text if text is form["content"] else ""),
        }
        if form.get("tool_calls"):
            kept["tool_calls"] = [_call_meaning(call) for call in form["tool_calls"]]
        form = kept
    return json.dumps(form, sort_keys=True, ensure_ascii=False)


def reasoning(form: Mapping[str, Any]) -> str | None:
    """The reasoning of a message (in canonical form), from its own field or in front of its text."""
    inline = _THOUGHT.match(form["content"]) if not form.get("reasoning_content") else None
    return inline.group(1) if inline is not None else form.get("reasoning_content")


def _text(content: Any, *, field: str, volatile: bool) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return _VOLATILE.sub("", content) if volatile else content
    if not isinstance(content, Sequence):
        raise InvalidRequest("expected text or a list of text parts", field=field)
    pieces: list[str] = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            text = part
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
            text = part["text"]
        else:
            raise InvalidRequest("only text parts are supported", field=f"{field}.{i}")
        pieces.append(_VOLATILE.sub("", text) if volatile else text)
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
    elif not _is_shallow(arguments):
        raise InvalidRequest("nested too deeply", field=f"{field}.function.arguments")
    result: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    if call.get("id"):
        result["id"] = call["id"]
    return result


def _object_or_text(text: str) -> Any:
    """A JSON object as a mapping (what templates want); any other text, also cut-off JSON, exactly as it came."""
    value = _parsed(text)
    return value if isinstance(value, dict) else text


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON
    return value if _is_shallow(value) else _NO_JSON


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        below = [
            item.values() if isinstance(item, Mapping) else item for item in level if isinstance(item, list | Mapping)
        ]
        level = [child for children in below for child in children]
        if not level:
            return True
    return False


def _call_meaning(call: Mapping[str, Any]) -> list[Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        value = _parsed(arguments) if arguments else {}
        if value is _NO_JSON:
            return [call.get("id"), call["function"]["name"], "text", arguments]
        arguments = value
    if arguments is None:
        arguments = {}
    return [call.get("id"), call["function"]["name"], "json", _as_javascript(arguments)]


def _as_javascript(value: Any) -> Any:
    """Numbers as a harness in JavaScript writes them again: 1.0 is 1 there."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _as_javascript(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_javascript(item) for item in value]
    return value
