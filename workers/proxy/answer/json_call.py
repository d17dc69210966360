"""A tool call written as JSON: `{"name": ..., "arguments": {...}}`, as Qwen, Hermes and Llama 3 sample it.

Invariants: the argument text is passed on exactly as sampled, as soon as the name is known; what turns out to be no
call comes back as text, markup and all; nothing is lost and nothing raises, wherever the text is cut.
"""

import json
import re
from typing import Any

from workers.proxy.answer.call_reader import CallReader
from workers.proxy.answer.events import Event, Kind
from workers.proxy.answer.scanner import ValueScanner

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\<]|\\.)+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)')
_KEYS = ('{"name"', '{"arguments"', '{"parameters"', '{"type"', '{"id"', '{"function"')
_LITERAL_END = re.compile(r"[\s,}\]<]")


class JsonCallReader(CallReader):
    """Reads what follows `opener`, up to `close` (empty: up to the end of the JSON object)."""

    closings = ("", "}")
    """What may stand between the arguments and `close`."""

    def __init__(self, index: int, opener: str, close: str) -> None:
        super().__init__(index, opener, close)
        self._scanner = ValueScanner(close)

    def finish(self) -> list[Event]:
        """What is left when the answer ends here. A call whose name is known stays a call, cut as it is."""
        self.over = True
        if self._step == self._head:
            events = self._whole(self._buffer)
            return events if events is not None else [Event(Kind.TEXT, self._opener + self._buffer)]
        if self._step == self._tail:
            return self._leftover(self._buffer)
        return [Event(Kind.ARGUMENTS, self._buffer, self.next_index)] if self._buffer else []

    def _head(self, events: list[Event]) -> bool:
        match = _HEAD.match(self._buffer)
        if match is not None:
            return self._named(events, _unescaped(match.group(1)), match.end())
        start = "".join(self._buffer.split())[:16]
        if start and not any(key.startswith(start) or start.startswith(key) for key in (*_KEYS, "[{")):
            return self._no_call(events, 0)  # what follows may hold a real call
        end = self._end_of_whole()
        if end is None:
            return False
        read = self._whole(self._buffer[: end - len(self._close)])
        if read is None:
            return self._no_call(events, end)
        events.extend(read)
        return self._through(end)

    def _named(self, events: list[Event], name: str, end: int) -> bool:
        """The name is known, and the arguments begin at `end`."""
        first, self._buffer = self._buffer[end], self._buffer[end:]
        events.append(Event(Kind.CALL, name, self.next_index))
        self._step = self._container if first in "{[" else self._string if first == '"' else self._literal
        return True

    def _end_of_whole(self) -> int | None:
        """Where a call ends that is not written name first; None if it has not ended yet."""
        if self._close:
            at = self._buffer.find(self._close)
            return at + len(self._close) if at >= 0 else None
        scanner = ValueScanner("")
        end = scanner.push(self._buffer)
        return end if scanner.over else None

    def _whole(self, body: str) -> list[Event] | None:
        """The events of one complete call, or of a list of them."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
        events: list[Event] = []
        for item in value if isinstance(value, list) else [value]:
            inner = item.get("function", item) if isinstance(item, dict) else None
            if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
                return None
            arguments = next((inner[key] for key in ("arguments", "parameters") if key in inner), {})
            index = self.next_index + sum(event.kind is Kind.CALL for event in events)
            events += [Event(Kind.CALL, inner["name"], index), Event(Kind.ARGUMENTS, _spelled(arguments, body), index)]
            events.append(Event(Kind.CALL_END, "", index))
        self.next_index += sum(event.kind is Kind.CALL for event in events)
        return events or None

    def _container(self, events: list[Event]) -> bool:
        taken = self._scanner.push(self._buffer)
        self._arguments(events, taken)
        if self._scanner.over or self._scanner.cut:
            return self._end_of_value(events)
        return False

    def _string(self, events: list[Event]) -> bool:
        """Arguments given as a string: what the string says, if that is a JSON object."""
        match = re.match(r'"(?:[^"\\]|\\.)*"', self._buffer, re.DOTALL)
        if match is None:
            return False
        said = _unescaped(match.group()[1:-1])
        self._buffer = self._buffer[match.end() :]
        events.append(Event(Kind.ARGUMENTS, said if _is_object(said) else match.group(), self.next_index))
        return self._end_of_value(events)

    def _literal(self, events: list[Event]) -> bool:
        match = _LITERAL_END.search(self._buffer)
        if match is None:
            return False
        self._arguments(events, match.start())
        return self._end_of_value(events)

    def _tail(self, events: list[Event]) -> bool:
        if not self._close:
            match = re.match(r"\s*\}", self._buffer)
            if match is None and not self._buffer.strip():
                return False
            return self._through(match.end() if match else 0)
        at = self._buffer.find(self._close)
        again = self._buffer.find(self._opener.strip()) if self._opener.strip() else -1
        if again >= 0 and (at < 0 or again < at):  # the closing marker was forgotten
            events.extend(self._leftover(self._buffer[:again]))
            return self._through(again)
        if at < 0:
            return False
        events.extend(self._leftover(self._buffer[:at]))
        return self._through(at + len(self._close))

    def _leftover(self, text: str) -> list[Event]:
        """What stands behind the arguments, if it is more than what closes the call."""
        return [] if text.strip() in self.closings else [Event(Kind.TEXT, text)]

    def _arguments(self, events: list[Event], taken: int) -> None:
        if taken:
            events.append(Event(Kind.ARGUMENTS, self._buffer[:taken], self.next_index))
            self._buffer = self._buffer[taken:]

    def _end_of_value(self, events: list[Event]) -> bool:
        events.append(Event(Kind.CALL_END, "", self.next_index))
        self.next_index += 1
        self._step = self._tail
        return True

    def _no_call(self, events: list[Event], end: int) -> bool:
        events.append(Event(Kind.TEXT, self._opener + self._buffer[:end]))
        return self._through(end)


def _spelled(arguments: Any, body: str) -> str:
    """The arguments as they stand in `body` where they can be found there, else written anew."""
    if isinstance(arguments, str) and _is_object(arguments):
        return arguments
    decoder = json.JSONDecoder()
    for match in re.finditer(r'"(?:arguments|parameters)"\s*:\s*', body):
        try:
            value, end = decoder.raw_decode(body, match.end())
        except ValueError:
            continue
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments, ensure_ascii=False)


def _unescaped(text: str) -> str:
    try:
        return json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
