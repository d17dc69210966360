"""OpenAI chat completions: text turns, streaming or not.

Checked here by hand rather than with the openai package: its types cost 0.4 s at import and, being for clients, accept
what this proxy must refuse (docs/decisions/0021-proxy-wire-types.md). What is refused is named; what is merely ignored
(sampling, which the burst imposes) is recorded.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from workers.proxy.broker import CallLimit
from workers.proxy.call import CallError, LiveCall, ModelRequest
from workflows.messages.errors import ContextOverflow, InvalidRequest

NAME = "chat"
KEEP_ALIVE = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"
MAX_STOPS = 16
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("max_tokens", "max_completion_tokens", "seed", "stop", "logit_bias", "reasoning_effort"),
)


def parse(body: Any) -> ModelRequest:
    """Raises InvalidRequest that names the field this proxy cannot serve."""
    if not isinstance(body, Mapping):
        raise InvalidRequest("a JSON object is expected", field="body")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("a non-empty list is expected", field="messages")
    for name in ("tools", "functions", "audio"):
        if body.get(name):
            raise InvalidRequest("is not supported here: text turns only", field=name)
    if body.get("n") not in (None, 1):
        raise InvalidRequest("only 1 is supported", field="n")
    if (body.get("response_format") or {"type": "text"}).get("type") != "text":
        raise InvalidRequest("only text is supported", field="response_format")
    for name in ("logprobs", "top_logprobs"):
        if body.get(name):
            raise InvalidRequest("is not served to clients", field=name)
    identity = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    return ModelRequest(
        dialect=NAME,
        model=str(body.get("model") or ""),
        messages=_encodable(messages),
        stops=_stops(body.get("stop")),
        asked_tokens=_asked(body),
        stream=body.get("stream") is True,
        include_usage=(body.get("stream_options") or {}).get("include_usage") is True,
        requested={name: body[name] for name in _SAMPLING if body.get(name) is not None},
        sha256=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
    )


def _encodable(messages: list[Any]) -> list[Any]:
    """Half a surrogate pair is legal in JSON and nowhere else: it becomes a question mark."""
    text = json.dumps(messages, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode(errors="replace"))
    return messages


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else list(value or [])
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidRequest(f"up to {MAX_STOPS} non-empty strings are expected", field="stop")
    return tuple(stops)


def _asked(body: Mapping[str, Any]) -> int | None:
    """The smaller of both names; null is as good as absent."""
    asked: list[int] = []
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidRequest("a whole number of at least 1 is expected", field=name)
        asked.append(value)
    return min(asked, default=None)


def usage(call: LiveCall) -> dict[str, Any]:
    """Of one request, however many segments it took."""
    prompt, output = len(call.prompt.ids), len(call.so_far.ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": call.cached_tokens},
    }


def answer(call: LiveCall, model: str) -> dict[str, Any]:
    """The whole reply of a finished call."""
    message = {"role": "assistant", "content": "".join(call.deltas), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": call.finish, "logprobs": None}
    return {**_head(call, model, "chat.completion"), "choices": [choice], "usage": usage(call)}


def first_event(call: LiveCall, model: str) -> bytes:
    return _event(call, model, {"role": "assistant", "content": ""}, None)


def text_event(call: LiveCall, model: str, text: str) -> bytes:
    return _event(call, model, {"content": text}, None)


def last_events(call: LiveCall, model: str, include_usage: bool) -> bytes:
    """Finish, usage if it was asked for (in one chunk of its own), and the end of the stream."""
    events = _event(call, model, {}, call.finish)
    if include_usage:
        events += _data({**_head(call, model, "chat.completion.chunk"), "choices": [], "usage": usage(call)})
    return events + DONE


def error_event(error: CallError) -> bytes:
    """An answer that broke off: never a finish, never [DONE]."""
    return _data(error_body(error))


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


def _head(call: LiveCall, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{call.call}", "object": kind, "created": int(call.started_at), "model": model}


def _event(call: LiveCall, model: str, delta: dict[str, Any], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return _data({**_head(call, model, "chat.completion.chunk"), "choices": [choice]})


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def models(model: str) -> dict[str, Any]:
    entry = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "opengyre"}
    return {"object": "list", "data": [entry]}
