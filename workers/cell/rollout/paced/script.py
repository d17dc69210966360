"""Scripted replies, so that a test can make the "model" say given texts.

A script is a JSON file::

    {"rules": [{"match": "regex on the last user message", "turn": 0, "replies": ["a", "b"]}],
     "default": "text or null"}

The first rule that fits wins. Every condition of a rule is optional: `match` (the last user message), `last` (the last
message, whoever said it: a tool result, mostly), `system`, `prompt` (all messages before this answer, control tokens
left out), `session`, and `turn` (number of assistant turns before this one). With several `replies`, the turn picks one
and the last one repeats; `{{name}}` in a reply becomes what the group `(?P<name>...)` of a condition matched. Nothing
fits and no default: seeded tokens.

What a file cannot say, a function can: the script ``module:function`` names one that takes a `Conversation` and returns
the text to say, or None.
"""

import importlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from workflows.messages.base import Message
from workflows.messages.errors import InvalidSpec

_FLAGS = re.DOTALL
_GROUP = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Conversation:
    """What an answer is asked for. `messages` are (role, text) in order, control tokens left out."""

    messages: tuple[tuple[str, str], ...]
    session: str = ""

    @property
    def turn(self) -> int:
        """Assistant turns so far."""
        return sum(role == "assistant" for role, _ in self.messages)

    def text_of(self, role: str) -> str:
        """The last message of a role; empty if there is none."""
        return next((text for found, text in reversed(self.messages) if found == role), "")

    @property
    def last(self) -> str:
        return self.messages[-1][1] if self.messages else ""

    @property
    def prompt(self) -> str:
        return "\n".join(f"{role}\n{text}" for role, text in self.messages)


Policy = Callable[[Conversation], str | None]


class Rule(Message):
    match: str = ""
    last: str = ""
    system: str = ""
    prompt: str = ""
    session: str = ""
    turn: int | None = None
    replies: tuple[str, ...]

    def reply(self, asked: Conversation) -> str | None:
        """What this rule says, or None if it does not fit."""
        if self.turn is not None and self.turn != asked.turn:
            return None
        groups: dict[str, str] = {}
        for pattern, text in (
            (self.match, lambda: asked.text_of("user")),
            (self.last, lambda: asked.last),
            (self.system, lambda: asked.text_of("system")),
            (self.prompt, lambda: asked.prompt),
            (self.session, lambda: asked.session),
        ):
            if not pattern:
                continue
            found = re.search(pattern, text(), _FLAGS)
            if found is None:
                return None
            groups |= {name: value or "" for name, value in found.groupdict().items()}
        text = self.replies[0 if self.turn is not None else min(asked.turn, len(self.replies) - 1)]
        return _GROUP.sub(lambda m: groups.get(m[1], m[0]), text)


class Script(Message):
    rules: tuple[Rule, ...] = ()
    default: str | None = None

    def __call__(self, asked: Conversation) -> str | None:
        """What the model says next, or None."""
        for rule in self.rules:
            said = rule.reply(asked)
            if said is not None:
                return said
        return self.default


def load_script(source: str) -> Policy | None:
    """The policy a file or ``module:function`` describes; None for an empty source. Raises InvalidSpec."""
    if not source:
        return None
    if Path(source).is_file():
        return Script.model_validate(json.loads(Path(source).read_text()))
    module, colon, name = source.partition(":")
    if not colon or "/" in source:
        raise InvalidSpec(f"neither a file nor module:function: {source}", field="script")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidSpec(str(error), field="script") from error


class ScriptReader:
    """Finds the messages and the already generated part of the answer in the ids of a ChatML-like prompt."""

    def __init__(self, policy: Policy | None, tokenizer: Tokenizer | None, end_of_turn: int | None) -> None:
        self._policy, self._tokenizer, self._end = policy, tokenizer, end_of_turn
        start = None if tokenizer is None else tokenizer.token_to_id("<|im_start|>")
        if policy is not None and (start is None or end_of_turn is None):
            raise InvalidSpec("a script needs a tokenizer with <|im_start|> and an end of turn", field="script")
        self._start = start

    def remaining(self, prompt: Sequence[int], session: str) -> list[int] | None:
        """Ids still to say after `prompt` (which may hold the beginning of the answer); None: not scripted."""
        if self._policy is None or self._tokenizer is None or self._end is None:
            return None
        heads = [index for index, token in enumerate(prompt) if token == self._start]
        turns = [self._tokenizer.decode(list(prompt[a + 1 : b])) for a, b in pairwise(heads)]
        messages = tuple((role, text.strip()) for role, _, text in (turn.partition("\n") for turn in turns))
        said = self._policy(Conversation(messages, session))
        if said is None:
            return None
        reply = [*self._tokenizer.encode(said, add_special_tokens=False).ids, self._end]
        tail = list(prompt[heads[-1] + 1 :]) if heads else list(prompt)
        for length in range(min(len(reply), len(tail)), 0, -1):
            if tail[-length:] == reply[:length]:
                return reply[length:]
        return reply
