"""How a policy family writes reasoning and tool calls. A property of the model's chat template, or of a setting."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from workers.proxy.answer.events import Event
from workers.proxy.answer.json_call import JsonCallReader
from workers.proxy.answer.marked_call import MarkedCallReader
from workers.proxy.answer.xml_call import XmlCallReader
from workflows.messages.errors import InvalidSpec

Types = Mapping[str, Mapping[str, Any]]


class CallReader(Protocol):
    """Reads one stretch of an answer that may be a tool call, or several."""

    next_index: int
    over: bool
    rest: str

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


@dataclass(frozen=True)
class AnswerFormat:
    """`think`: markers around reasoning at the start of an answer, empty if there is none. `call_open` begins a tool
    call, `call_close` ends it (empty: the JSON object's end does). `bare`: an answer that begins with a brace is a
    call too, and more follow behind `;`. `around`: markers around all calls together, which say nothing more.
    `inside`: further markers of a call."""

    name: str
    think: tuple[str, str] = ("", "")
    call_open: str = ""
    call_close: str = ""
    bare: bool = False
    around: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    reader: Callable[[int, str, str, Types], CallReader] | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """Everything that a parser must see as text, also where the tokenizer holds it as a special token."""
        texts = (*self.think, self.call_open, self.call_close, *self.around, *self.inside)
        return tuple(text for text in texts if text)


def _json(index: int, opener: str, close: str, types: Types) -> CallReader:
    return JsonCallReader(index, opener, close)


def _marked(index: int, opener: str, close: str, types: Types) -> CallReader:
    return MarkedCallReader(index, opener, close)


_THINK = ("<think>", "</think>")
_FORMATS = {
    item.name: item
    for item in (
        AnswerFormat("plain"),
        AnswerFormat("qwen-json", _THINK, "<tool_call>", "</tool_call>", reader=_json),
        AnswerFormat("qwen-xml", _THINK, "<tool_call>", "</tool_call>", reader=XmlCallReader),
        AnswerFormat("llama-json", _THINK, "<|python_tag|>", bare=True, reader=_json),
        AnswerFormat(
            "deepseek",
            _THINK,
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            inside=("<｜tool▁sep｜>",),
            reader=_marked,
        ),
    )
}
FORMAT_NAMES = ("auto", *_FORMATS)


def format_named(name: str) -> AnswerFormat:
    """Raises InvalidSpec, naming the ones there are."""
    if name not in _FORMATS:
        raise InvalidSpec(f"no answer format {name!r}; there are {sorted(_FORMATS)}", field="answer_format")
    return _FORMATS[name]


def format_of_template(template: str) -> AnswerFormat:
    """The format that a chat template shows its model. One that shows none gets Qwen's: whatever the policy was
    taught beside its template is most likely that, and an answer without its markers is not touched by it."""
    if "<function=" in template:
        return _FORMATS["qwen-xml"]
    if "<｜tool▁call▁begin｜>" in template:
        return _FORMATS["deepseek"]
    if "<tool_call>" not in template and ("<|python_tag|>" in template or "Environment: ipython" in template):
        return _FORMATS["llama-json"]
    return _FORMATS["qwen-json"]


def parameter_types(tools: list[Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """JSON schema types by tool and parameter; a parameter without one is left out."""
    types: dict[str, dict[str, Any]] = {}
    for tool in tools or []:
        function = tool.get("function")
        schema = function.get("parameters") if isinstance(function, Mapping) else None
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(properties, Mapping):
            continue
        types[str(function.get("name"))] = {
            key: value["type"] for key, value in properties.items() if isinstance(value, Mapping) and "type" in value
        }
    return types
