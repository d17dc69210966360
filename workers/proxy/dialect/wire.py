"""What the dialects share: JSON, events, the identity of a request, checks against a published request type."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from workers.proxy.call import LiveCall
from workflows.messages.errors import InvalidRequest

MAX_STOPS = 16
IMAGE_NOTE = "[an image that this model cannot see]"
_WHO = re.compile(r"(agent|thread|session|conversation)[-_]?id$")
_NOT_IDENTITY = ("stream", "stream_options")


def loads(raw: bytes) -> Any:
    """A request body. Raises InvalidRequest for what is not JSON.

    Half a surrogate pair is legal in JSON and nowhere else: it becomes a question mark.
    """
    try:
        return orjson.loads(raw)
    except ValueError:
        pass
    try:
        value = json.loads(raw)
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}", field="body") from None
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode(errors="replace"))
    return value


def dumps(value: Any) -> bytes:
    return orjson.dumps(value)


def text_json(text: str) -> bytes:
    """A JSON string. Sampled text never holds half a surrogate pair, so this cannot fail."""
    return orjson.dumps(text)


def identity(body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """sha256 of what makes two requests the same: the body without the way of delivery, and the headers in which a
    harness names the agent that asks. Two agents may well ask the same thing at once."""
    kept = {key: value for key, value in body.items() if key not in _NOT_IDENTITY}
    who = {name: value for name, value in headers.items() if _WHO.search(name)}
    try:
        data = orjson.dumps([kept, who], option=orjson.OPT_SORT_KEYS)
    except TypeError:  # whole numbers of more than 64 bits
        data = json.dumps([kept, who], sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def frame(before: bytes, text: str, after: bytes) -> bytes:
    """An event that was built once around a piece of text."""
    return before + orjson.dumps(text) + after


def split_at(data: bytes, hole: str) -> tuple[bytes, bytes]:
    """The bytes around the JSON string `hole`, which stands in `data` exactly once."""
    before, after = data.split(orjson.dumps(hole))
    return before, after


class Checked:
    """Checks requests against a type of an official client package.

    The package is imported at the first use (or by `load`): it costs half a second that a restarting proxy does not
    have. What the type does not know is let through, and so is a fault in a field we do not read: only `read` fields
    are refused. Null is as good as absent.
    """

    def __init__(self, find: Callable[[], Any], read: Sequence[str], defaults: Mapping[str, Any]) -> None:
        self._find, self._read, self._defaults = find, frozenset(read), dict(defaults)
        self._adapter: TypeAdapter[Any] | None = None

    def load(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            self._adapter = TypeAdapter(self._find())
        return self._adapter

    def check(self, body: Any) -> dict[str, Any]:
        """The body without its nulls. Raises InvalidRequest that names the first field that is wrong."""
        if not isinstance(body, Mapping):
            raise InvalidRequest("a JSON object is expected", field="body")
        given = {key: value for key, value in body.items() if value is not None}
        try:
            seen = self.load().validate_python({**self._defaults, **given})
        except ValidationError as error:
            self._refuse(error, "")
            return given
        for name, value in seen.items():
            # The types promise iterables, which pydantic checks only while they are read.
            if name in self._read and not isinstance(value, str | list | Mapping) and hasattr(value, "__next__"):
                try:
                    for _ in value:
                        pass
                except ValidationError as error:
                    self._refuse(error, name)
        return given

    def _refuse(self, error: ValidationError, prefix: str) -> None:
        best = _most_likely([item for item in error.errors() if (prefix or item["loc"][0]) in self._read])
        if best is not None:
            where = [prefix, *best["loc"]] if prefix else list(best["loc"])
            raise InvalidRequest(best["msg"], field=".".join(str(part) for part in where if not _is_branch(part)))


def _most_likely(errors: list[Any]) -> Any:
    """Of the branches of a union, the one with the fewest faults is the one that was meant."""
    if not errors:
        return None
    branches: dict[tuple[Any, ...], list[Any]] = {}
    for item in errors:
        loc = item["loc"]
        at = next((i for i, part in enumerate(loc) if _is_branch(part)), len(loc))
        branches.setdefault(loc[: at + 1], []).append(item)
    # A wrong role or type means that another branch was meant.
    return min(branches.values(), key=lambda items: (any(i["type"] == "literal_error" for i in items), len(items)))[0]


def _is_branch(part: Any) -> bool:
    """Whether a step of an error's location names a branch of a union rather than a field or a position."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in ("str", "int", "float", "bool"))


def with_contents(raw: Any) -> Any:
    """A body whose messages all have a content: null or none at all is legal wherever clients send it, whatever the
    type says of the role."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("messages"), list):
        return raw
    messages = [
        {**m, "content": ""} if isinstance(m, Mapping) and m.get("content") is None else m for m in raw["messages"]
    ]
    return {**raw, "messages": messages}


def stops_of(value: Any, field: str) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else list(value or [])
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidRequest(f"up to {MAX_STOPS} non-empty strings are expected", field=field)
    return tuple(stops)


def budget_of(body: Mapping[str, Any], *names: str) -> int | None:
    """The smallest of the named budgets; None if none is given."""
    asked: list[int] = []
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidRequest("a whole number of at least 1 is expected", field=name)
        asked.append(value)
    return min(asked, default=None)


def calls_allowed(choice: Any) -> bool:
    """Whether tools may be called. Raises InvalidRequest for a choice that would take it from the policy."""
    if choice in (None, "auto"):
        return True
    if choice == "none":
        return False
    raise InvalidRequest("the policy decides for itself: only auto and none are supported", field="tool_choice")


def function_tool(name: Any, description: Any, parameters: Any, field: str) -> dict[str, Any]:
    """A tool as chat templates take it."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest("a tool needs a name", field=f"{field}.name")
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    function["parameters"] = parameters if isinstance(parameters, Mapping) else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def usage_counts(call: LiveCall) -> tuple[int, int, int]:
    """Prompt, output and cached tokens of one request, however many segments it took."""
    return len(call.prompt.ids), len(call.so_far.ids), call.cached_tokens
