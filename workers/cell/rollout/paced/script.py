"""Scripted replies, so that a test can make the "model" say given texts.

A script is a JSON file::

    {"rules": [{"match": "regex on the last user message", "turn": 0, "session": "regex", "replies": ["a", "b"]}],
     "default": "text or null"}

The first rule that fits wins; `turn` (number of assistant turns before this one) and `session` are optional. With
several `replies`, the turn picks one and the last one repeats. Nothing fits and no default: seeded tokens.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from workflows.messages.base import Message
from workflows.messages.errors import InvalidSpec


class Rule(Message):
    match: str = ""
    turn: int | None = None
    session: str = ""
    replies: tuple[str, ...]

    def fits(self, user: str, turn: int, session: str) -> bool:
        if self.turn is not None and self.turn != turn:
            return False
        return bool(re.search(self.match, user, re.DOTALL)) and bool(re.search(self.session, session))

    def reply(self, turn: int) -> str:
        return self.replies[0 if self.turn is not None else min(turn, len(self.replies) - 1)]


class Script(Message):
    rules: tuple[Rule, ...] = ()
    default: str | None = None

    def reply(self, user: str, turn: int, session: str) -> str | None:
        """What the model says to `user` in assistant turn `turn`, or None."""
        for rule in self.rules:
            if rule.fits(user, turn, session):
                return rule.reply(turn)
        return self.default


def load_script(path: str) -> Script:
    return Script.model_validate(json.loads(Path(path).read_text())) if path else Script()


class ScriptReader:
    """Finds turn, user message and already generated part in the ids of a ChatML-like prompt."""

    def __init__(self, script: Script, tokenizer: Tokenizer | None, end_of_turn: int | None) -> None:
        self._script, self._tokenizer, self._end = script, tokenizer, end_of_turn
        start = None if tokenizer is None else tokenizer.token_to_id("<|im_start|>")
        if (script.rules or script.default is not None) and (start is None or end_of_turn is None):
            raise InvalidSpec("a script needs a tokenizer with <|im_start|> and an end of turn", field="script")
        self._start = start

    def remaining(self, prompt: Sequence[int], session: str) -> list[int] | None:
        """Ids still to say after `prompt` (which may hold the beginning of the answer); None: not scripted."""
        if self._tokenizer is None or self._start is None or self._end is None:
            return None
        heads = [index for index, token in enumerate(prompt) if token == self._start]
        turns = [self._tokenizer.decode(list(prompt[a + 1 : b])) for a, b in pairwise(heads)]
        users = [text.split("\n", 1)[-1] for text in turns if text.startswith("user")]
        turn = sum(text.startswith("assistant") for text in turns)
        text = self._script.reply(users[-1].strip() if users else "", turn, session)
        if text is None:
            return None
        reply = [*self._tokenizer.encode(text, add_special_tokens=False).ids, self._end]
        tail = list(prompt[heads[-1] + 1 :]) if heads else list(prompt)
        for said in range(min(len(reply), len(tail)), 0, -1):
            if tail[-said:] == reply[:said]:
                return reply[said:]
        return reply
