"""An answer's text to events, piece by piece.

Invariants: the events do not depend on how the text was cut; every character comes out, except the markers and the
white space around them; stop strings end the text that a client sees and are not looked for in reasoning or in a call.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from workers.proxy.answer.events import Event, Kind
from workers.proxy.answer.format import AnswerFormat, CallReader


class AnswerParser:
    """`tools`: whether calls are looked for at all (else their markup is text). `thinking`: the prompt has already
    opened the reasoning. `single`: the answer ends where a second call would begin. `types`: see `AnswerFormat`."""

    def __init__(
        self,
        form: AnswerFormat,
        stops: Sequence[str] = (),
        *,
        tools: bool = False,
        thinking: bool = False,
        single: bool = False,
        types: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._format, self._types, self._single = form, types or {}, single
        self._tools = tools and form.reader is not None
        self._buffer = self._space = ""
        self._skip_breaks = thinking
        self._reader: CallReader | None = None
        self._next_index = 0
        self._behind_call = False
        self._step = self._reasoning if thinking else self._start
        needles = [*stops, *([form.call_open, *form.around] if self._tools else [])]
        self._needles = re.compile("|".join(map(re.escape, needles))) if needles else None
        self._beginnings = _Beginnings(needles)
        self._think_end = _Beginnings([form.think[1]] if form.think[1] else [])
        self.stopped = False
        self.stopped_by: str | None = None
        """The stop string that ended the answer."""

    @property
    def thinking(self) -> bool:
        """Whether it is inside reasoning."""
        return self._step == self._reasoning

    @property
    def may_think(self) -> bool:
        """Whether reasoning goes on, or may still begin."""
        return self._step in (self._start, self._reasoning)

    @property
    def may_be_text(self) -> bool:
        """Whether it is not inside reasoning or a call."""
        return self._step in (self._start, self._text)

    def push(self, text: str) -> list[Event]:
        """The events that `text` completes; none once the answer has stopped."""
        if self.stopped or not text:
            return []
        self._buffer += text
        events: list[Event] = []
        while self._step(events):
            pass
        return self._at_most_one(events) if self._single else events

    def finish(self) -> list[Event]:
        """What was held back: no more text will come."""
        if self.stopped:
            return []
        events: list[Event] = []
        if self._reader is not None:
            events = self._reader.finish()
        else:
            kind = Kind.REASONING if self._step == self._reasoning else Kind.TEXT
            rest = self._space + self._buffer
            if (
                rest
                and not (self._behind_call and not rest.strip())
                and not (self._skip_breaks and not rest.strip("\n"))
            ):
                events = [Event(kind, rest)]
        self._buffer = self._space = ""
        return self._at_most_one(events) if self._single else events

    def _start(self, events: list[Event]) -> bool:
        """Nothing but white space so far: reasoning or a bare call may still begin."""
        opener = self._format.think[0]
        text = self._buffer.lstrip() if opener or self._format.bare else "x"
        if opener and text.startswith(opener):
            self._buffer, self._step, self._skip_breaks = text[len(opener) :], self._reasoning, True
            return True
        if opener.startswith(text) and opener and self._step == self._start and self._stop_at() is None:
            return False
        if self._tools and self._format.bare and text.startswith("{"):
            self._open(self._buffer[: len(self._buffer) - len(text)], text)
            return True
        self._step = self._text
        return True

    def _reasoning(self, events: list[Event]) -> bool:
        self._drop_breaks()
        closer = self._format.think[1]
        at = self._buffer.find(closer)
        if at < 0:
            keep = self._think_end.held(self._buffer)
            self._say(events, Kind.REASONING, self._buffer[: len(self._buffer) - keep])
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        self._say(events, Kind.REASONING, self._buffer[:at])
        self._space = ""
        self._buffer, self._skip_breaks = self._buffer[at + len(closer) :], True
        self._step = self._after_reasoning if self._format.bare else self._text
        return True

    def _after_reasoning(self, events: list[Event]) -> bool:
        text = self._buffer.lstrip()
        if not text:
            return False
        if self._tools and text.startswith("{"):
            self._open("", text)
        else:
            self._step = self._text
        return True

    def _text(self, events: list[Event]) -> bool:
        self._drop_breaks()
        match = self._stop_at()
        if match is None:
            keep = self._beginnings.held(self._buffer)
            self._say(events, Kind.TEXT, self._buffer[: len(self._buffer) - keep])
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        self._say(events, Kind.TEXT, self._buffer[: match.start()])
        if self._tools and match.group() in self._format.around:
            self._buffer = self._buffer[match.end() :]
            return True
        if self._tools and match.group() == self._format.call_open:
            self._open(self._space + match.group(), self._buffer[match.end() :])
            return True
        if self._space:
            events.append(Event(Kind.TEXT, self._space))
        self.stopped, self.stopped_by = True, match.group()
        self._buffer = self._space = ""
        return False

    def _call(self, events: list[Event]) -> bool:
        reader = self._reader
        if reader is None:
            return False
        events.extend(reader.push(self._buffer))
        self._buffer = ""
        if not reader.over:
            return False
        self._behind_call = reader.next_index > self._next_index
        self._next_index, self._reader, self._buffer = reader.next_index, None, reader.rest
        self._step = self._separator if self._format.bare and self._behind_call else self._text
        return True

    def _separator(self, events: list[Event]) -> bool:
        """Behind a call without a closing marker: another one, or text."""
        text = self._buffer.lstrip().removeprefix(";").lstrip()
        if not text:
            return False
        if text.startswith("{"):
            self._open(self._buffer[: len(self._buffer) - len(text)], text)
        else:
            self._step = self._text
        return True

    def _open(self, opener: str, rest: str) -> None:
        if self._format.reader is not None:
            self._reader = self._format.reader(self._next_index, opener, self._format.call_close, self._types)
        self._space, self._buffer, self._skip_breaks, self._step = "", rest, False, self._call

    def _say(self, events: list[Event], kind: Kind, text: str) -> None:
        """Show text; white space at its end is kept until it is known that no marker follows."""
        if not text:
            return
        text = self._space + text
        self._space = ""
        if self._tools or kind is Kind.REASONING:
            kept = text.rstrip()
            self._space, text = text[len(kept) :], kept
        if text:
            self._behind_call = False
            events.append(Event(kind, text))

    def _drop_breaks(self) -> None:
        if self._skip_breaks:
            self._buffer = self._buffer.lstrip("\n")
            self._skip_breaks = not self._buffer

    def _stop_at(self) -> re.Match[str] | None:
        return self._needles.search(self._buffer) if self._needles is not None else None

    def _at_most_one(self, events: list[Event]) -> list[Event]:
        for at, event in enumerate(events):
            if event.kind is Kind.CALL and event.index > 0:
                self.stopped = True
                return events[:at]
        return events


class _Beginnings:
    """Knows how much of a text's end may be the beginning of one of the needles."""

    def __init__(self, needles: Sequence[str]) -> None:
        self._first = frozenset(needle[0] for needle in needles)
        self._proper = frozenset(needle[:length] for needle in needles for length in range(1, len(needle)))
        self._longest = max((len(needle) - 1 for needle in needles), default=0)

    def held(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of a needle."""
        tail = text[-self._longest :] if self._longest else ""
        if self._first.isdisjoint(tail):
            return 0
        return next((length for length in range(len(tail), 0, -1) if tail[-length:] in self._proper), 0)
