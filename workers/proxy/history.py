"""Which earlier call a request continues, and the exact ids that follow from it.

A request's history is matched semantically (canonical messages, an answer's outer white space aside) against the calls
recorded for its execution; the longest match wins, the latest call among equals. The matched call's ids are re-used to
the last one, so what was sampled is never re-encoded. No match or a template that rewrites earlier turns: the prompt
is rendered afresh, and the call keeps the reason and the length of what it still shares.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.tokenizer import ChatTokenizer, canonical

Chat = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Turn:
    """A recorded call: all its ids (prompt and output) and the chain of its messages with its answer."""

    call: str
    ids: tuple[int, ...]
    chain: str


@dataclass(frozen=True)
class Prompt:
    """Ids of a request. The first `shared` are those of `parent`; `fork_reason` says why not all of the parent's."""

    ids: list[int]
    parent: str | None
    shared: int
    fork_reason: str | None


def chains(messages: Chat) -> list[str]:
    """One key per message that stands for the conversation up to and including it."""
    state, keys = "", []
    for index, message in enumerate(messages):
        form = canonical(message, field=f"messages.{index}")
        if form["role"] == "assistant":
            # Clients trim answers; a blank answer still differs from an empty one.
            form = {**form, "content": form["content"].strip() or form["content"]}
        text = json.dumps(form, sort_keys=True, ensure_ascii=False)
        state = hashlib.sha256(f"{state}\n{text}".encode()).hexdigest()
        keys.append(state)
    return keys


class History:
    """The finished calls of one execution."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._by_chain: dict[str, Turn] = {}

    def add(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._by_chain[turn.chain] = turn

    def match(self, keys: Sequence[str]) -> tuple[Turn, int] | None:
        """The call that the longest beginning of the messages belongs to, and how many messages that is."""
        for count in range(len(keys), 0, -1):
            turn = self._by_chain.get(keys[count - 1])
            if turn is not None:
                return turn, count
        return None

    def closest(self, ids: Sequence[int]) -> tuple[Turn | None, int]:
        """The call that shares most leading ids with `ids`, the latest among equals."""
        best: Turn | None = None
        longest = 0
        for turn in self._turns:
            shared = common_prefix(turn.ids, ids)
            if shared and shared >= longest:
                best, longest = turn, shared
        return best, longest

    def prompt(self, tokenizer: ChatTokenizer, messages: Chat) -> Prompt:
        """Exact input ids of `messages`. Raises InvalidRequest for messages that cannot be rendered."""
        matched = self.match(chains(messages))
        if matched is not None:
            turn, count = matched
            ids = tokenizer.extend(turn.ids, messages[:count], messages[count:])
            if ids is not None:
                return Prompt(ids, turn.call, len(turn.ids), None)
        ids = tokenizer.render(messages)
        closest, shared = self.closest(ids)
        if closest is None:
            return Prompt(ids, None, 0, "template" if matched else "new root" if self._turns else None)
        if matched is not None:
            return Prompt(ids, closest.call, shared, "template")
        return Prompt(ids, closest.call, shared, "sampled again" if shared == len(ids) else "history")


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    limit = min(len(first), len(second))
    for index in range(limit):
        if first[index] != second[index]:
            return index
    return limit
