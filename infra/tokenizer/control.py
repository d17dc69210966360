"""Keeps text that merely looks like a control token from becoming one.

Invariant: a control id enters a prompt only where the chat template itself wrote the marker. Before a template runs,
every control text inside message strings gets a guard character after its first character, one that occurs nowhere in
the conversation; the rendered text is then cut at the remaining (true) markers, and the guards are removed.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_GUARDS = range(0xE000, 0xF8FF)  # private use: no meaning to any tokenizer or template


class ControlTokens:
    """The added tokens of a tokenizer. `special` ones are never written by content; the others (`<think>`,
    `<tool_call>`, ...) may stand in what an assistant said, because the policy samples them."""

    def __init__(self, special: Mapping[str, int], other: Mapping[str, int]) -> None:
        self.ids = {**other, **special}
        too_short = [text for text in self.ids if len(text) < 2]
        if too_short:
            raise ValueError(f"control tokens of one character cannot be told from content: {too_short}")
        self._any = _alternatives(self.ids)
        self._special = _alternatives(special)

    def guard_for(self, texts: Iterable[str]) -> str:
        """A character that occurs in none of `texts`."""
        return free_characters(texts, 1)

    def protect(self, value: Any, guard: str, *, sampled: bool) -> Any:
        """`value` (a str, or lists and dicts of them) with every control text broken by `guard`.

        `sampled` marks what the policy itself wrote: there only `special` tokens are broken.
        """
        pattern = self._special if sampled else self._any
        if pattern is None:
            return value
        if isinstance(value, str):
            if pattern.search(value) is None:
                return value
            return re.sub(f"(?=({pattern.pattern}))(.)", lambda m: m.group(2) + guard, value, flags=re.DOTALL)
        if isinstance(value, Mapping):
            return {
                self.protect(k, guard, sampled=sampled): self.protect(v, guard, sampled=sampled)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [self.protect(item, guard, sampled=sampled) for item in value]
        return value

    def split(self, rendered: str, guard: str) -> list[int | str]:
        """Rendered text as a list of control ids and stretches of ordinary text, guards removed, no empty ones."""
        pieces: list[int | str] = []
        position = 0
        for match in self._any.finditer(rendered) if self._any else ():
            if match.start() > position:
                pieces.append(rendered[position : match.start()].replace(guard, ""))
            pieces.append(self.ids[match.group()])
            position = match.end()
        if position < len(rendered):
            pieces.append(rendered[position:].replace(guard, ""))
        return [piece for piece in pieces if piece != ""]


def free_characters(texts: Iterable[str], count: int) -> str:
    """That many different characters, joined, none of which occurs in any of `texts`."""
    known = list(texts)
    found = (chr(code) for code in _GUARDS if not any(chr(code) in text for text in known))
    return "".join(islice(found, count))


def strings_in(value: Any) -> Iterable[str]:
    """Every string inside `value`, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(texts, key=lambda text: (-len(text), text))  # the longest match wins
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
