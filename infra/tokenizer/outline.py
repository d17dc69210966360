"""The little of a conversation that a chat template may look at besides what it writes: enough to stand in for it.

A template writes message after message, and looks back only at the shape of things: is there a system message, which
was the last user message, was the message before a tool's. An `Outline` keeps that shape and nothing of the text, so a
conversation of a thousand messages is stood in for by a handful (`Outline.messages`). That this is enough for a given
template is never taken on trust: `infra.tokenizer.increment` checks it.

Pure data, extended message by message at constant cost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from infra.tokenizer.conversation import reasoning

MAX_STEPS = 16
"""Kinds of steps since the last user message; a conversation with more is not outlined."""
_SYSTEM = ("system", "developer")
_WRAPPER = ("<tool_response>", "</tool_response>")
"""User messages inside it are tool results to several templates."""


class Kind(NamedTuple):
    """What a template may branch on in one message. `calls`: 0, 1 or 2 for more; `raw`: arguments that are no JSON
    object; `wrapped`: a tool result in a user message."""

    role: str
    text: bool
    thinks: bool = False
    calls: int = 0
    raw: bool = False
    named: bool = False
    wrapped: bool = False


def kind_of(form: Mapping[str, Any]) -> Kind:
    """Kind of a message in canonical form."""
    calls = form.get("tool_calls") or ()
    return Kind(
        role=form["role"],
        text=bool(form["content"]),
        thinks=form["role"] == "assistant" and reasoning(form) is not None,
        calls=min(len(calls), 2),
        raw=any(isinstance(call["function"]["arguments"], str) for call in calls),
        named="name" in form,
        wrapped=form["role"] == "user" and form["content"].lstrip().startswith(_WRAPPER[0]),
    )


@dataclass(frozen=True, slots=True)
class Outline:
    """`head`: a first system message. `older`: there was a user message before the last one. `opening`: from the last
    user message to the answer behind it. `steps`: the kinds of steps (an answer and what follows it) since then, each
    once, in the order they were last seen. `lost`: too many of them."""

    head: Kind | None = None
    older: bool = False
    opening: tuple[Kind, ...] = ()
    steps: tuple[tuple[Kind, ...], ...] = ()
    lost: bool = False

    def after(self, kind: Kind) -> "Outline":
        """The outline with one message more."""
        if kind.role in _SYSTEM and self == EMPTY:
            return Outline(head=kind)
        if kind.role == "user" and not kind.wrapped:
            had_user = any(known.role == "user" for known in self.opening)
            return Outline(self.head, self.older or had_user, (kind,))
        if kind.role == "assistant":
            steps = self.steps
            if steps and steps[-1] in steps[:-1]:
                at = steps.index(steps[-1])
                steps = (*steps[:at], *steps[at + 1 :])
            lost = self.lost or len(steps) >= MAX_STEPS
            return replace(self, steps=steps if lost else (*steps, (kind,)), lost=lost)
        if self.steps:
            return replace(self, steps=(*self.steps[:-1], _followed(self.steps[-1], kind)))
        return replace(self, opening=_followed(self.opening, kind))

    def messages(self, mark: str) -> list[dict[str, Any]]:
        """A short conversation of this shape, in canonical form. Every text in it contains `mark`."""
        kinds = [self.head] if self.head is not None else []
        if self.older:
            kinds += [Kind("user", True), Kind("assistant", True)]
        kinds += self.opening
        for step in self.steps:
            kinds += step
        return [stand_in(kind, f"{mark}{index}{mark}") for index, kind in enumerate(kinds)]


EMPTY = Outline()


def outline_of(forms: Iterable[Mapping[str, Any]]) -> Outline:
    """Outline of a whole conversation in canonical form."""
    outline = EMPTY
    for form in forms:
        outline = outline.after(kind_of(form))
    return outline


def stand_in(kind: Kind, text: str) -> dict[str, Any]:
    """A message of this kind, in canonical form, whose every text begins with or contains `text`; its content goes on
    with "said", its reasoning with "thought"."""
    content = f"{text}said" if kind.text else ""
    message: dict[str, Any] = {"role": kind.role, "content": content.join(_WRAPPER) if kind.wrapped else content}
    if kind.thinks:
        message["reasoning_content"] = f"{text}thought"
    if kind.named:
        message["name"] = text
    if kind.role == "tool":
        message["tool_call_id"] = text
    if kind.calls:
        arguments = text if kind.raw else {text: text}
        function = {"name": text, "arguments": arguments}
        message["tool_calls"] = [{"type": "function", "function": function, "id": text}] * kind.calls
    return message


def _followed(step: tuple[Kind, ...], kind: Kind) -> tuple[Kind, ...]:
    """A third and later one in a row of the same kind adds nothing."""
    return step if step[-2:] == (kind, kind) else (*step, kind)
