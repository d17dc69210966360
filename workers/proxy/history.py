"""Which earlier call a request continues, and the exact ids that follow from it.

A request's messages are matched by meaning against the calls recorded for its execution. From the longest beginning
that is known, ids are re-used to the last one, so what was sampled is never encoded again, and only what is behind it
is rendered. Two kinds of beginnings are known: up to an answer (the call's prompt and output), and up to where a
call's request ended (its prompt without the generation prompt), for requests that go on differently from there.

Where the template writes the earlier turns differently once the new messages are there, or the harness has changed
them, the prompt forks: it shares what it can, and keeps the reason and the position (`Prompt.shared`). What is sent to
the engine is what is recorded, so nothing is ever trained on a prefix it was not sampled from.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from infra.records.calls import RecordedCall
from infra.records.token_chain import Ids, TokenChain
from infra.tokenizer import ChatTokenizer, canonical
from infra.tokenizer.conversation import reasoning
from infra.tokenizer.increment import Beginning, Setting
from infra.tokenizer.outline import kind_of
from workers.proxy.message_tree import KEY_BYTES, MessageTree, Place, branch, chained
from workers.proxy.tool_payloads import ToolPayloads
from workers.proxy.turns import Turn, Turns
from workflows.messages.errors import InvalidRequest

Messages = Sequence[Mapping[str, Any]]
ATTEMPTS = 4
"""Beginnings tried from the longest down, and then as many that end with a user's message."""


class ForkReason(StrEnum):
    """Why a prompt does not continue all the ids of the call it shares most with."""

    NEW_ROOT = "new root"  # nothing is shared
    TOOLS = "tools"  # other tools than any call before
    SAMPLED_AGAIN = "sampled again"  # the same prompt as an earlier call
    TEMPLATE = "template"  # the template rewrites earlier turns when these messages follow
    ANSWER = "answer"  # the harness changed what was sampled
    HISTORY = "history"  # the harness changed, dropped or inserted other messages


@dataclass(frozen=True, eq=False)
class Prompt:
    """Input ids of a request: the first `kept` of `base`, then `added`; as long as `len` says, put together when they
    are asked for. The first `shared` are those of call `parent`; `fork_reason` says why not all of the parent's.

    `place`: where its messages are; None for a prompt that is only read back.
    """

    base: TokenChain | None
    kept: int
    added: Sequence[int] | Ids
    parent: str | None
    shared: int
    fork_reason: str | None
    place: Place | None = None

    def __len__(self) -> int:
        return self.kept + len(self.added)

    @cached_property
    def ids(self) -> list[int]:
        """All of them, for an engine."""
        return self._whole().tolist()

    @property
    def own(self) -> Ids:
        """Those behind the shared ones: what a record keeps."""
        if self.shared >= self.kept:
            return np.asarray(self.added[self.shared - self.kept :], dtype=np.int32)
        return self._whole()[self.shared :]

    def _whole(self) -> Ids:
        if self.base is None:
            return np.asarray(self.added, dtype=np.int32)
        return self.base.ids(self.kept, then=self.added)

    def record_key(self, answer: Mapping[str, Any] | None = None) -> str:
        """Stands for the request's messages (32 hexadecimal digits), and with its answer (32 more), in every process:
        how a call is found again after a restart. Raises ValueError for a prompt that was read back."""
        if self.place is None:
            raise ValueError("this prompt was read back")
        key = self.place.key(len(self.place))
        return key.hex() + (chained(key, canonical(answer)).hex() if answer is not None else "")


class History:
    """The finished calls of one execution. `clock`: what its templates are told the time is: its first call's."""

    def __init__(self) -> None:
        self.clock: float | None = None
        self._turns = Turns()
        self._tree = MessageTree()
        self._answered: dict[bytes, tuple[Turn, ...]] = {}
        self._asked: dict[bytes, Turn] = {}
        self._payloads = ToolPayloads()

    def prompt(self, tokenizer: ChatTokenizer, messages: Messages, tools: list[Any] | None = None) -> Prompt:
        """Exact input ids of `messages`. Raises InvalidRequest for messages that cannot be rendered."""
        try:
            return self.encode(tokenizer, self.find(tokenizer, messages, tools))
        except RecursionError:
            raise InvalidRequest("nested too deeply", field="messages") from None

    def find(self, tokenizer: ChatTokenizer, messages: Messages, tools: list[Any] | None = None) -> Place:
        """Where the messages are in what is known; costs a comparison of bytes for what is, and no more."""
        shown = tools if tools and tokenizer.reading.tools else None
        return self._tree.place(messages, shown, self._restored, self._thought)

    def encode(self, tokenizer: ChatTokenizer, place: Place) -> Prompt:
        """The prompt of a place; costs what is new there."""
        if self.clock is None:
            self.clock = time.time()
        setting = Setting(place.tools, self.clock)
        rewritten = False
        attempts = ATTEMPTS if tokenizer.analysis.incremental else 1
        for count in self._beginnings(place, attempts):
            turn = self._answer_at(place, count)
            if turn is not None:
                found = self._behind_answer(tokenizer, place, count, turn, setting)
                if found is not None:
                    return found
                rewritten = True
            if place.key(count) in self._asked:
                found = self._behind_prompt(tokenizer, place, count, rewritten, setting)
                if found is not None:
                    return found
                rewritten = True
        ids = np.asarray(tokenizer.render_forms(place.forms(0, len(place)), setting), dtype=np.int32)
        if rewritten:
            reason = ForkReason.TEMPLATE
        else:
            reason = ForkReason.TOOLS if self._tree.has_only_others(place) else self._changed(place)
        return self._forked(ids, None, 0, reason, place)

    def add(
        self, call: str, prompt: Prompt, tokenizer: ChatTokenizer, output: Sequence[int], answer: Mapping[str, Any]
    ) -> None:
        """Keep a call whose record is durable: what it sampled, and the message that is (what the harness will send
        back)."""
        if prompt.place is None:
            raise ValueError("this prompt was read back")
        form = canonical(answer)
        self._payloads.remember(answer)
        thinks = tokenizer.has_reasoning(output)
        turn = self._turns.add(
            call,
            prompt.parent,
            prompt.shared,
            np.concatenate([prompt.own, np.asarray(output, dtype=np.int32)]),
            prompt_length=len(prompt),
            thinks=thinks,
            thought=_digest(reasoning(form)),
        )
        node = self._tree.grow(prompt.place)
        self._asked[node.key] = turn
        forms = [form]
        if form["content"] and not form["content"].strip():
            forms.append({**form, "content": ""})  # white space alone: a harness may well send back nothing at all
        for known in forms:
            key = chained(node.key, known)
            branch(node, key, answer if known is form else known, kind_of(known)._replace(thinks=thinks))
            self._answered[key] = (*self._answered.get(key, ()), turn)

    def restore(self, call: RecordedCall, tokenizer: ChatTokenizer) -> None:
        """Keep a call read back from the records, whose parents have been."""
        if self.clock is None:
            self.clock = call.fields["started_at"]
        turn = self._turns.add(
            call.call,
            call.parent_call,
            call.shared_tokens,
            call.chain.own,
            prompt_length=call.prompt_tokens,
            thinks=tokenizer.has_reasoning(call.output_array.tolist()),
        )
        keys = bytes.fromhex(call.fields["history_sha256"] or "")
        if len(keys) == 2 * KEY_BYTES:
            self._asked[keys[:KEY_BYTES]] = turn
            self._answered[keys[KEY_BYTES:]] = (*self._answered.get(keys[KEY_BYTES:], ()), turn)

    def turn(self, call: str) -> Turn:
        """A kept call. Raises KeyError."""
        return self._turns[call]

    def answers_in(self, prompt: Prompt) -> Iterator[str]:
        """The calls whose answers a request contains: whoever sent it has received them."""
        if prompt.place is not None:
            for count in range(1, len(prompt.place) + 1):
                turn = self._answer_at(prompt.place, count)
                if turn is not None:
                    yield turn.call

    def _restored(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._payloads.restored([message])[0]

    def _thought(self, key: bytes) -> bool | None:
        turns = self._answered.get(key)
        return turns[-1].thinks if turns else None

    def _answer_at(self, place: Place, count: int) -> Turn | None:
        """The answer that ends the first `count` messages: of several the one with the same reasoning, else the
        latest."""
        turns = self._answered.get(place.key(count), ())
        if len(turns) > 1:
            thought = _digest(reasoning(place.forms(count - 1, count)[0]))
            same = [turn for turn in turns if thought is not None and turn.thought == thought]
            turns = same or turns
        return turns[-1] if turns else None

    def _beginnings(self, place: Place, attempts: int) -> Iterator[int]:
        """Lengths of known beginnings worth trying, longest first. When the template rewrites the last few, it does
        so back to some user's message."""
        tried = 0
        for count in range(len(place), 0, -1):
            key = place.key(count)
            if key not in self._answered and key not in self._asked:
                continue
            if tried < attempts or place.kind(count).role == "user":
                tried += 1
                yield count
            if tried >= 2 * attempts:
                return

    def _behind_answer(
        self, tokenizer: ChatTokenizer, place: Place, count: int, turn: Turn, setting: Setting
    ) -> Prompt | None:
        new = place.forms(count, len(place))
        kind = place.kind(count)._replace(thinks=turn.thinks)
        added = tokenizer.behind_answer(self._beginning(place, count - 1), kind, turn.output.tolist(), new, setting)
        if added is None:
            return None
        return Prompt(turn, len(turn), added, turn.call, len(turn), None, place)

    def _behind_prompt(
        self, tokenizer: ChatTokenizer, place: Place, count: int, rewritten: bool, setting: Setting
    ) -> Prompt | None:
        turn = self._asked[place.key(count)]
        if count == len(place):
            reason = ForkReason.TEMPLATE if rewritten else ForkReason.SAMPLED_AGAIN
            return Prompt(turn, turn.prompt_length, (), turn.call, turn.prompt_length, reason, place)
        new = place.forms(count, len(place))
        found = tokenizer.behind_prompt(self._beginning(place, count), new, setting)
        if found is None:
            return None
        dropped, added = found
        kept = turn.prompt_length - len(dropped)
        if turn.prompt[kept:].tolist() != dropped:
            return None
        reason = ForkReason.TEMPLATE if rewritten else self._changed(place)
        return self._forked(turn.ids(kept, then=added), turn, kept, reason, place)

    def _forked(self, whole: Ids, start: Turn | None, agreed: int, reason: ForkReason | None, place: Place) -> Prompt:
        closest, shared = self._turns.closest(whole, start, agreed)
        if closest is None:
            named = reason if reason is ForkReason.TOOLS else ForkReason.NEW_ROOT
            return Prompt(None, 0, whole, None, 0, named if len(self._turns) else None, place)
        if shared == len(closest) and shared < len(whole):
            reason = None  # written differently, and yet the very same ids
        return Prompt(closest, shared, whole[shared:], closest.call, shared, reason, place)

    def _changed(self, place: Place) -> ForkReason:
        """Who is at the first message that is not known."""
        known = len(place.known) - 1
        for count in range(len(place), known, -1):
            if place.key(count) in self._answered or place.key(count) in self._asked:
                known = count
                break
        changed = known < len(place) and place.kind(known + 1).role == "assistant"
        return ForkReason.ANSWER if changed else ForkReason.HISTORY

    def _beginning(self, place: Place, count: int) -> Beginning:
        def forms() -> list[dict[str, Any]]:
            forms = place.forms(0, count)
            for index, form in enumerate(forms):
                # The ids hold the reasoning that the harness has dropped.
                if place.kind(index + 1).thinks and reasoning(form) is None:
                    forms[index] = {**form, "reasoning_content": "thought"}
            return forms

        return Beginning(place.outline(count), count, forms)


def _digest(thought: str | None) -> bytes | None:
    return (
        None if thought is None else hashlib.blake2b(thought.strip().encode("utf-8", "replace"), digest_size=8).digest()
    )
