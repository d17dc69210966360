"""OpenAI chat completions: requests. (`chat_reply` writes the answers.)

Checked against the openai package's request type; what is refused is named, what is merely ignored (sampling, which the
burst imposes) is recorded.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness_adapters.protocol import CallRole
from workers.proxy.call import Grammar, ModelRequest
from workers.proxy.dialect import wire
from workers.proxy.dialect.texts import parts_of
from workflows.messages.errors import InvalidRequest

NAME = "chat"
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


def parse(raw: Any, headers: Mapping[str, str], role: CallRole = CallRole.MAIN) -> ModelRequest:
    """Raises InvalidRequest that names the field this proxy cannot serve."""
    body = CHECKED.check(wire.with_contents(raw))
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
    allowed = wire.calls_allowed(body.get("tool_choice"))
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
