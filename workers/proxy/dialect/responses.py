"""OpenAI responses: requests. (`responses_reply` writes the answers.)

A turn of the model is spread over items here (reasoning, message, function calls); they become one chat message again.
Checked against the openai package's request type; what is refused is named, what is merely ignored is recorded.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness_adapters.protocol import CallRole
from workers.proxy.call import Grammar, ModelRequest
from workers.proxy.dialect import wire
from workers.proxy.dialect.responses_tools import Offered, offered
from workers.proxy.dialect.texts import joined, parts_of
from workflows.messages.errors import InvalidRequest

NAME = "responses"
_SAMPLING = (
    *("temperature", "top_p", "max_output_tokens", "reasoning", "tool_choice", "parallel_tool_calls", "text"),
    *("truncation", "include", "store"),
)
_READ = ("input", "instructions", "tool_choice", "parallel_tool_calls", "top_logprobs", "text")
_ECHO = ("instructions", "metadata", "parallel_tool_calls", "tool_choice", "max_output_tokens")
_LOGPROBS = "message.output_text.logprobs"


def _params() -> Any:
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    return ResponseCreateParamsBase


CHECKED = wire.Checked(_params, _READ, {"model": "policy"})


def parse(raw: Any, headers: Mapping[str, str], role: CallRole = CallRole.MAIN) -> ModelRequest:
    """Raises InvalidRequest that names the field this proxy cannot serve."""
    body = _checked(raw)
    for name in ("previous_response_id", "conversation", "prompt", "background"):
        if body.get(name):
            raise InvalidRequest("nothing is stored here: send the whole conversation as input", field=name)
    if body.get("top_logprobs"):
        raise InvalidRequest("only the sampled token's log-prob is kept: 0 is supported", field="top_logprobs")
    tools = offered(body.get("tools"))
    allowed = wire.calls_allowed(body.get("tool_choice"))
    grammar = _grammar(body.get("text"))
    if grammar is not None and tools.served and allowed:
        raise InvalidRequest("cannot be combined with tools", field="text.format")
    requested = {name: body[name] for name in _SAMPLING if name in body}
    if tools.unserved:
        requested["unserved_tools"] = list(tools.unserved)
    return ModelRequest(
        dialect=NAME,
        model=str(body.get("model") or ""),
        messages=[*_instructions(body.get("instructions")), *_conversation(body.get("input"), tools)],
        stops=(),
        asked_tokens=wire.budget_of(body, "max_output_tokens"),
        stream=body.get("stream") is True,
        include_usage=True,
        requested=requested,
        sha256=wire.identity(body, headers),
        tools=list(tools.served) or None,
        grammar=grammar,
        role=role,
        calls_allowed=allowed and bool(tools.served),
        single_call=body.get("parallel_tool_calls") is False,
        logprobs=_LOGPROBS in (body.get("include") or []),
        echo={name: body[name] for name in _ECHO if name in body} | {"tools": tools},
    )


def _checked(raw: Any) -> dict[str, Any]:
    """The body without its nulls. Items are checked by their own kind below: the type's union of all kinds costs ten
    times as much, and names the wrong one in its errors."""
    if isinstance(raw, Mapping) and isinstance(raw.get("input"), list):
        CHECKED.check({**raw, "input": []})
        return {key: value for key, value in raw.items() if value is not None}
    return CHECKED.check(raw)


def _instructions(text: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}] if text else []


def _conversation(given: Any, tools: Offered) -> list[dict[str, Any]]:
    if isinstance(given, str) and given:
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise InvalidRequest("text or a non-empty list of items is expected", field="input")
    result: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        if not isinstance(item, Mapping):
            raise InvalidRequest("an object is expected", field=f"input.{i}")
        _add(result, item, f"input.{i}", tools)
    return result


def _add(result: list[dict[str, Any]], item: Mapping[str, Any], field: str, tools: Offered) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise InvalidRequest("user, assistant, system or developer is expected", field=f"{field}.role")
        if role == "assistant":
            turn = _turn(result)
            turn["content"] += joined(item.get("content"), f"{field}.content")
        else:
            content = parts_of(item.get("content"), f"{field}.content")
            result.append({"role": "system" if role == "developer" else role, "content": content})
    elif kind == "reasoning":
        texts = [part.get("text") for part in item.get("content") or [] if isinstance(part, Mapping)]
        thought = "".join(text for text in texts if isinstance(text, str))
        turn = _turn(result)
        if thought:
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
    elif kind in ("function_call", "custom_tool_call"):
        _turn(result).setdefault("tool_calls", []).append(_call(item, kind, field, tools))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        text = joined(item.get("output"), f"{field}.output", "\n")
        result.append({"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text})
    else:
        raise InvalidRequest(f"items of type {kind!r} are not supported", field=f"{field}.type")


def _turn(result: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's turn that the next item belongs to."""
    if not result or result[-1]["role"] != "assistant":
        result.append({"role": "assistant", "content": ""})
    return result[-1]


def _call(item: Mapping[str, Any], kind: str, field: str, tools: Offered) -> dict[str, Any]:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("a call needs a name", field=f"{field}.name")
    if kind == "custom_tool_call":
        arguments = json.dumps({"input": str(item.get("input") or "")}, ensure_ascii=False)
    else:
        arguments = item.get("arguments") if isinstance(item.get("arguments"), str) else ""
    return {
        "id": str(item.get("call_id") or ""),
        "type": "function",
        "function": {"name": tools.name_of(item.get("namespace"), name), "arguments": arguments},
    }


def _grammar(text: Any) -> Grammar | None:
    form = text.get("format") if isinstance(text, Mapping) else None
    kind = form.get("type") if isinstance(form, Mapping) else "text"
    if not isinstance(form, Mapping) or kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json_schema", '{"type": "object"}')
    if kind != "json_schema" or not isinstance(form.get("schema"), Mapping):
        raise InvalidRequest("text, json_object and json_schema with a schema are supported", field="text.format")
    return Grammar("json_schema", json.dumps(form["schema"]))
