"""A tool call written with tags, as Qwen3-Coder samples it::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

A harness wants JSON, so the argument text is built here: a parameter whose schema says string (or says nothing) is
text, any other is taken as JSON where it is JSON. Invariants as for JSON calls: no text is lost, nothing raises, and
the same answer gives the same events wherever it is cut.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from workers.proxy.answer.call_reader import CallReader
from workers.proxy.answer.events import Event, Kind

_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>")
_NEXT = re.compile(r"<parameter=([^<>\n]+)>\n?|</function>")
_END = "</parameter>"


class XmlCallReader(CallReader):
    """Reads what follows `opener`, up to `close`. `types`: JSON schema types by tool and parameter."""

    def __init__(self, index: int, opener: str, close: str, types: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(index, opener, close)
        self._types = types
        self._kinds: Mapping[str, Any] = {}
        self._key = ""
        self._started = False  # the value of the current parameter has been begun as a JSON string
        self._parameters = 0

    def finish(self) -> list[Event]:
        """What is left when the answer ends here. A call whose name is known stays a call, its arguments cut."""
        self.over = True
        events: list[Event] = []
        if self._step == self._head:
            events.append(Event(Kind.TEXT, self._opener + self._buffer))
        elif self._step == self._value:
            if self._is_text():
                self._say(events, self._buffer, end=False)
            else:
                self._arguments(events, self._buffer)
        else:
            self._stray(events, len(self._buffer))
        return events

    def _head(self, events: list[Event]) -> bool:
        match = _FUNCTION.match(self._buffer)
        if match is None:
            start = self._buffer.lstrip()[:10]
            if not "<function=".startswith(start) or self._close in self._buffer:
                events.append(Event(Kind.TEXT, self._opener))
                return self._through(0)
            return False
        self._buffer = self._buffer[match.end() :]
        events.append(Event(Kind.CALL, match.group(1), self.next_index))
        self._kinds = self._types.get(match.group(1), {})
        self._step = self._between
        return True

    def _between(self, events: list[Event]) -> bool:
        match = _NEXT.search(self._buffer)
        closed = self._buffer.find(self._close)
        if closed >= 0 and (match is None or closed < match.start()):  # </function> was forgotten
            self._stray(events, closed)
            return self._end(events)
        if match is None:
            return False
        if match.group(1) and match.end() == len(self._buffer) and not match.group().endswith("\n"):
            return False  # the line break behind the tag belongs to it
        self._stray(events, match.start())
        self._buffer = self._buffer[match.end() - match.start() :]
        if not match.group(1):
            return self._end(events)
        self._key, self._started, self._step = match.group(1).strip(), False, self._value
        self._arguments(events, ("{" if not self._parameters else ", ") + f"{_quoted(self._key)}: ")
        self._parameters += 1
        return True

    def _value(self, events: list[Event]) -> bool:
        at = self._buffer.find(_END)
        if at >= 0:
            self._say(events, self._buffer[:at].removesuffix("\n"), end=True)
            self._buffer, self._step = self._buffer[at + len(_END) :], self._between
            return True
        if self._is_text():  # shown as it comes; the line break before the closing tag belongs to the tag
            keep = next((n for n in range(len(_END), 0, -1) if ("\n" + _END).startswith(self._buffer[-n:])), 0)
            keep = keep or next((n for n in range(len(_END) - 1, 0, -1) if _END.startswith(self._buffer[-n:])), 0)
            if len(self._buffer) > keep:
                self._say(events, self._buffer[: len(self._buffer) - keep], end=False)
                self._buffer = self._buffer[len(self._buffer) - keep :]
        return False

    def _say(self, events: list[Event], text: str, *, end: bool) -> None:
        if self._is_text():
            opening = "" if self._started else '"'
            self._started = True
            self._arguments(events, opening + _quoted(text)[1:-1] + ('"' if end else ""))
        else:
            self._arguments(events, _as_json(text))

    def _is_text(self) -> bool:
        return self._kinds.get(self._key, "string") == "string"

    def _tail(self, events: list[Event]) -> bool:
        at = self._buffer.find(self._close)
        again = self._buffer.find(self._opener.strip())
        if again >= 0 and (at < 0 or again < at):  # the closing tag was forgotten
            self._stray(events, again)
            return self._through(0)
        if at < 0:
            return False
        self._stray(events, at)
        return self._through(len(self._close))

    def _end(self, events: list[Event]) -> bool:
        self._arguments(events, "}" if self._parameters else "{}")
        events.append(Event(Kind.CALL_END, "", self.next_index))
        self.next_index += 1
        self._step = self._tail
        return True

    def _stray(self, events: list[Event], end: int) -> None:
        """Text where only tags belong is text."""
        if self._buffer[:end].strip():
            events.append(Event(Kind.TEXT, self._buffer[:end]))
        self._buffer = self._buffer[end:]

    def _arguments(self, events: list[Event], text: str) -> None:
        if text:
            events.append(Event(Kind.ARGUMENTS, text, self.next_index))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _as_json(text: str) -> str:
    stripped = text.strip()
    try:
        json.loads(stripped)
    except (ValueError, RecursionError):
        return _quoted(text)
    return stripped
