"""What follows a known beginning of a conversation, rendered without rendering the beginning again.

The model's own template runs on a short stand-in for the beginning (`Outline.messages`) plus the new messages. What it
writes behind the stand-in is the increment, if three things hold:

1. it writes the stand-in as it wrote it before the new messages came (else earlier turns are rewritten: no increment);
2. nothing of the stand-in's texts, all of which carry a mark, turns up in the increment;
3. the same messages behind the *real* beginning give the same increment. That costs a rendering of everything, so it
   is checked once per shape (`_Shape`) and, because a template may count messages, again each time the beginning has
   doubled in length (up to 256 messages). A shape that fails is never trusted again: it is rendered whole, and logged.

So a template for which increments cannot work costs time, never a wrong id. Increments begin with a control token (or
are empty): text is never cut inside what the tokenizer sees as one stretch.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from infra.tokenizer.control import free_characters, strings_in
from infra.tokenizer.outline import Kind, Outline, kind_of, stand_in
from workflows.messages.errors import InvalidRequest

log = logging.getLogger(__name__)
Forms = Sequence[dict[str, Any]]
Pieces = list[int | str]
_COUNTED_BITS = 8
_THINK = ("<think>", "</think>")


class Renderer(Protocol):
    """Canonical messages to the template's text, control texts in content broken by `guard`."""

    def __call__(self, forms: Forms, guard: str, tools: list[Any] | None, prompt: bool, clock: float | None) -> str: ...


@dataclass(frozen=True)
class Beginning:
    """The known messages: their outline, how many, and how to get at them in canonical form (seldom needed)."""

    outline: Outline
    length: int
    forms: Callable[[], list[dict[str, Any]]]


@dataclass(frozen=True)
class Setting:
    """What a whole conversation is rendered with. `clock`: seconds since the epoch, None for now."""

    tools: list[Any] | None = None
    clock: float | None = None


@dataclass(frozen=True)
class Increment:
    """`dropped`: the generation prompt that the new pieces replace; `pieces`: control ids and stretches of text."""

    pieces: Pieces
    dropped: Pieces


@dataclass(frozen=True)
class _Shape:
    outline: Outline
    answer: Kind | None
    new: tuple[Kind, ...]
    tools: bool
    length_bits: int


class Increments:
    """`split`: rendered text and guard to pieces; `ends`: ids that end a turn."""

    def __init__(self, render: Renderer, split: Callable[[str, str], Pieces], *, shows_tools: bool) -> None:
        self._render, self._split, self._shows_tools = render, split, shows_tools
        self.ends: frozenset[int] = frozenset()
        self.parallel = True
        """Whether stand-ins may have several calls in one message."""
        self.whole = False
        """Every beginning is rendered whole: no shape can be trusted."""
        self._proven: set[_Shape] = set()
        self._refuted: set[_Shape] = set()

    @property
    def refuted(self) -> int:
        """How many shapes have failed the check."""
        return len(self._refuted)

    def behind_answer(self, beginning: Beginning, answer: Kind, new: Forms, setting: Setting) -> Increment | None:
        """From the end-of-turn token of an answer of this kind on; None if the template rewrites earlier turns."""
        return self._checked(beginning, answer, new, setting)

    def behind_prompt(self, beginning: Beginning, new: Forms, setting: Setting) -> Increment | None:
        """What follows the beginning instead of the generation prompt; None as above."""
        return self._checked(beginning, None, new, setting)

    def _checked(self, beginning: Beginning, answer: Kind | None, new: Forms, setting: Setting) -> Increment | None:
        shape = _Shape(
            beginning.outline,
            answer,
            _runs(kind_of(form) for form in new),
            bool(setting.tools) and self._shows_tools,
            min(beginning.length.bit_length(), _COUNTED_BITS),
        )
        if self.whole or beginning.outline.lost or shape in self._refuted:
            return self._behind(beginning.forms(), answer, new, setting)
        marks = free_characters(strings_in(list(new)), 3)
        quick = replace(setting, tools=[_tool(marks[1])] if shape.tools else None)
        stood_in = [self._one_call(form) for form in beginning.outline.messages(marks[1])]
        found = self._behind(stood_in, answer, new, quick, marks)
        if shape in self._proven:
            return found
        exact = self._behind(beginning.forms(), answer, new, setting)
        if found == exact:
            self._proven.add(shape)
        else:
            self._refuted.add(shape)
            log.warning("the chat template looks back further than an increment shows: rendered whole for %s", shape)
        return exact

    def _behind(
        self, known: Forms, answer: Kind | None, new: Forms, setting: Setting, marks: str = ""
    ) -> Increment | None:
        if not marks:
            marks = free_characters(strings_in([list(known), list(new), setting.tools]), 3)
        guard, mark, own = marks

        def text(forms: Forms, *, prompt: bool) -> str:
            return self._render(forms, guard, setting.tools, prompt, setting.clock)

        try:
            if answer is not None:
                said = self._one_call(stand_in(answer._replace(text=answer.text or answer.thinks), f"{own}a{own}"))
                before, whole = text(known, prompt=True), text([*known, said, *new], prompt=True)
                if not whole.startswith(before):
                    return None
                return self._closed(whole[len(before) :], guard, mark, own, answer)
            before, whole = text(known, prompt=False), text([*known, *new], prompt=True)
            prompted = text(known, prompt=True)
        except InvalidRequest:
            return None
        if not (whole.startswith(before) and prompted.startswith(before)):
            return None
        dropped = self._split(prompted[len(before) :], guard)
        pieces = self._split(whole[len(before) :], guard)
        if not (_cut_cleanly(dropped) and _cut_cleanly(pieces)) or _mentions(pieces, mark):
            return None
        return Increment(pieces, dropped)

    def _closed(self, rest: str, guard: str, mark: str, own: str, answer: Kind) -> Increment | None:
        """The increment in the text behind a generation prompt, which begins with the stand-in of the answer."""
        if answer.thinks and f"{own}thought" not in rest and f"{own}said" in rest:
            return None  # the text is kept, the reasoning in front of it is not
        pieces = self._split(rest, guard)
        last = max((at for at, piece in enumerate(pieces) if isinstance(piece, str) and own in piece), default=-1)
        end = next((at for at in range(last + 1, len(pieces)) if pieces[at] in self.ends), None)
        if end is None or _mentions(pieces[end:], mark):
            return None
        if not answer.calls and _adds_text(pieces[:end], f"{own}a{own}"):
            return None  # the template puts words into the policy's mouth
        return Increment(pieces[end:], [])

    def _one_call(self, form: dict[str, Any]) -> dict[str, Any]:
        if self.parallel or len(form.get("tool_calls", ())) < 2:
            return form
        return {**form, "tool_calls": form["tool_calls"][:1]}


def _runs(kinds: Any) -> tuple[Kind, ...]:
    """The kinds with runs of more than two cut to two."""
    kept: list[Kind] = []
    for kind in kinds:
        if kept[-2:] != [kind, kind]:
            kept.append(kind)
    return tuple(kept)


def _tool(mark: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"p{mark}": {"type": "string", "description": f"d{mark}"}}}
    function = {"name": f"n{mark}", "description": f"d{mark}", "parameters": schema}
    return {"type": "function", "function": function}


def _cut_cleanly(pieces: Pieces) -> bool:
    return not pieces or isinstance(pieces[0], int)


def _adds_text(answer: Pieces, own: str) -> bool:
    """Whether the rendered stand-in of an answer has more text than the stand-in; markers of reasoning are none."""
    text = "".join(piece for piece in answer if isinstance(piece, str))
    for known in (f"{own}thought", f"{own}said", *_THINK):
        text = text.replace(known, "")
    return bool(text.strip())


def _mentions(pieces: Pieces, mark: str) -> bool:
    return any(isinstance(piece, str) and mark in piece for piece in pieces)
