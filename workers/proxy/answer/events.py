"""What an answer is made of, in order. Every dialect tells the same events in its own words."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"  # a tool call begins; `text` is the tool's name
    ARGUMENTS = "arguments"  # the next piece of the call's argument text, as it was sampled
    CALL_END = "call end"  # the arguments are complete; an answer cut by length may lack it


@dataclass(frozen=True, slots=True)
class Event:
    """`index` counts the answer's tool calls from 0; it means nothing for reasoning and text."""

    kind: Kind
    text: str = ""
    index: int = 0


_JOINED = (Kind.TEXT, Kind.REASONING, Kind.ARGUMENTS)


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbouring pieces of one thing joined: fewer frames for what is ready at once."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if last is not None and last.kind is event.kind and last.index == event.index and event.kind in _JOINED:
            result[-1] = Event(event.kind, last.text + event.text, event.index)
        else:
            result.append(event)
    return result


def assistant_message(events: Iterable[Event], call_id: Callable[[int], str]) -> dict[str, Any]:
    """The chat message that the events mean: role, content, and where there are any reasoning_content and tool_calls,
    with the argument text exactly as sampled. `call_id` names the call of an index."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[int, str, list[str]]] = []
    for event in events:
        if event.kind is Kind.TEXT:
            content.append(event.text)
        elif event.kind is Kind.REASONING:
            reasoning.append(event.text)
        elif event.kind is Kind.CALL:
            calls.append((event.index, event.text, []))
        elif event.kind is Kind.ARGUMENTS:
            calls[-1][2].append(event.text)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(content)}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = [
            {"id": call_id(index), "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
            for index, name, arguments in calls
        ]
    return message
