"""Anthropic messages: requests. (`messages_reply` writes the answers.)

Checked against the anthropic package's request type; what is refused is named, what is merely ignored is recorded.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness_adapters.protocol import CallRole
from workers.proxy.call import Grammar, ModelRequest
from workers.proxy.dialect import wire
from workers.proxy.dialect.texts import joined, parts_of, text_of
from workflows.messages.errors import InvalidRequest

NAME = "messages"
RAW_ARGUMENTS = "raw_arguments"
"""The only key of a tool's input that was sampled as something else than a JSON object; the text is its value."""
_SAMPLING = (
    *("temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "thinking", "tool_choice", "output_config"),
)
_READ = ("messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences")
_THINKING = frozenset({"thinking", "redacted_thinking"})


def _params() -> Any:
    from anthropic.types.message_create_params import MessageCreateParamsBase

    return MessageCreateParamsBase


CHECKED = wire.Checked(_params, _READ, {"model": "policy", "max_tokens": 1})


def parse(raw: Any, headers: Mapping[str, str], role: CallRole = CallRole.MAIN) -> ModelRequest:
    """Raises InvalidRequest that names the field this proxy cannot serve. Without max_tokens (count_tokens has none)
    the budget is the context that is left."""
    body = CHECKED.check(wire.with_contents(raw))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("a non-empty list is expected", field="messages")
    tools, unserved = _tools(body.get("tools"))
    allowed, single = _choice(body.get("tool_choice"))
    grammar = _grammar(body)
    if grammar is not None and tools and allowed:
        raise InvalidRequest("cannot be combined with tools", field="output_config.format")
    requested = {name: body[name] for name in _SAMPLING if name in body}
    if unserved:
        requested["unserved_tools"] = unserved
    return ModelRequest(
        dialect=NAME,
        model=str(body.get("model") or ""),
        messages=[*_system(body.get("system")), *_conversation(messages)],
        stops=wire.stops_of(body.get("stop_sequences"), "stop_sequences"),
        asked_tokens=wire.budget_of(body, "max_tokens"),
        stream=body.get("stream") is True,
        include_usage=True,
        requested=requested,
        sha256=wire.identity(body, headers),
        tools=tools,
        grammar=grammar,
        role=role,
        calls_allowed=allowed and bool(tools),
        single_call=single,
    )


def _system(system: Any) -> list[dict[str, Any]]:
    """A block of a system prompt begins a line of its own."""
    text = joined(system, "system", "\n")
    return [{"role": "system", "content": text}] if text else []


def _conversation(messages: list[Any]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        field = f"messages.{i}"
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant", "system"):
            raise InvalidRequest("user, assistant or system is expected", field=f"{field}.role")
        if message["role"] == "assistant":
            turn = _assistant(message["content"], f"{field}.content")
            # One turn may come in several messages, block by block.
            if result and result[-1]["role"] == "assistant":
                result[-1] = _one_turn(result[-1], turn)
            else:
                result.append(turn)
        elif message["role"] == "user":
            result.extend(_user(message["content"], f"{field}.content"))
        else:
            result.append({"role": "system", "content": parts_of(message["content"], f"{field}.content")})
    return result


def _user(content: Any, field: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own; text between them stays where it is."""
    if not isinstance(content, list):
        return [{"role": "user", "content": parts_of(content, field)}]
    result: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        where = f"{field}.{i}"
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            text = "\n".join(_result_texts(block.get("content"), f"{where}.content"))
            result.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id") or ""), "content": text})
            continue
        part = {"type": "text", "text": _block_text(block, where)}
        if result and result[-1]["role"] == "user":
            result[-1]["content"].append(part)
        else:
            result.append({"role": "user", "content": [part]})
    return result or [{"role": "user", "content": ""}]


def _result_texts(content: Any, field: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    if not isinstance(content, list):
        raise InvalidRequest("expected text or a list of blocks", field=field)
    return [_block_text(block, f"{field}.{i}") for i, block in enumerate(content)]


def _block_text(block: Any, field: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "document":
        source = block.get("source") or {}
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return source["data"]
        if source.get("type") == "content":
            return joined(source.get("content"), f"{field}.source.content", "\n")
        return "[a document that this model cannot read]"
    if kind == "search_result":
        return joined(block.get("content"), f"{field}.content", "\n")
    if kind == "tool_reference":
        return str(block.get("tool_name") or "")
    return text_of(block, field)


def _assistant(content: Any, field: str) -> dict[str, Any]:
    if not isinstance(content, list):
        return {"role": "assistant", "content": parts_of(content, field)}
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind in _THINKING:
            reasoning.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            calls.append(_call(block, f"{field}.{i}"))
        else:
            text.append(text_of(block, f"{field}.{i}"))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any], field: str) -> dict[str, Any]:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("a tool use needs a name", field=f"{field}.name")
    if isinstance(given, Mapping) and list(given) == [RAW_ARGUMENTS] and isinstance(given[RAW_ARGUMENTS], str):
        arguments = given[RAW_ARGUMENTS]
    else:
        arguments = json.dumps({} if given is None else given, ensure_ascii=False)
    return {"id": str(block.get("id") or ""), "type": "function", "function": {"name": name, "arguments": arguments}}


def _one_turn(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    joint = {"role": "assistant", "content": joined(first["content"], "") + joined(second["content"], "")}
    reasoning = first.get("reasoning_content", "") + second.get("reasoning_content", "")
    calls = [*first.get("tool_calls", []), *second.get("tool_calls", [])]
    return {
        **joint,
        **({"reasoning_content": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _tools(tools: Any) -> tuple[list[Mapping[str, Any]] | None, list[str]]:
    """Tools of the harness, and the names of those that only the real API could run."""
    served: list[Mapping[str, Any]] = []
    unserved: list[str] = []
    for i, tool in enumerate(tools or []):
        if not isinstance(tool, Mapping):
            raise InvalidRequest("an object is expected", field=f"tools.{i}")
        if tool.get("type") not in (None, "custom"):
            unserved.append(str(tool["type"]))
            continue
        served.append(
            wire.function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"), f"tools.{i}")
        )
    return served or None, unserved


def _choice(choice: Any) -> tuple[bool, bool]:
    """Whether tools may be called, and whether one at most."""
    kind = choice.get("type") if isinstance(choice, Mapping) else "auto"
    allowed = wire.calls_allowed(kind or "")
    single = isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is True
    return allowed, single


def _grammar(body: Mapping[str, Any]) -> Grammar | None:
    form = (body.get("output_config") or {}).get("format") or body.get("output_format")
    if not form:
        return None
    schema = form.get("schema") if isinstance(form, Mapping) and form.get("type") == "json_schema" else None
    if not isinstance(schema, Mapping):
        raise InvalidRequest("json_schema with a schema is supported", field="output_config.format")
    return Grammar("json_schema", json.dumps(schema))
