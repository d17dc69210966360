"""Conversations known so far as a tree of messages, so that a request is matched without hashing its history again.

A node remembers its message as the harness last wrote it, and the key of the conversation up to it. A request's
messages are compared with the nodes by equality, which for what a harness repeats is a comparison of bytes; only a
message written differently than last time, or a new one, is brought into canonical form and keyed. Keys are chained
digests of meanings (`infra.tokenizer.conversation`), so they are the same in every process.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.tokenizer import canonical
from infra.tokenizer.conversation import meaning
from infra.tokenizer.outline import EMPTY, Kind, Outline, kind_of
from workers.proxy.call_ids import is_minted

KEY_BYTES = 16
Restore = Callable[[Mapping[str, Any]], Mapping[str, Any]]
_REMEMBERED_PATHS = 4
"""Conversations whose nodes are kept in a row: an agent and the sub-agents that talk at the same time."""
_TRIED = 8
"""Branches compared by equality before keys are; a conversation seldom goes on in more than two ways."""


class Node:
    """One message behind its parent's. `plain`: nothing in it that equality would take for something else."""

    __slots__ = ("children", "key", "kind", "message", "outline", "plain")

    def __init__(self, key: bytes, message: Mapping[str, Any] | None, kind: Kind | None, outline: Outline) -> None:
        self.key, self.kind, self.outline = key, kind, outline
        self.children: tuple[Node, ...] = ()
        self.remember(message)

    def remember(self, message: Mapping[str, Any] | None) -> None:
        self.message = message
        self.plain = message is None or "tool_calls" not in message or _is_plain(message["tool_calls"])

    def is_of(self, message: Any) -> bool:
        return self.message == message and (self.plain or _same(self.message, message))

    def child(self, key: bytes) -> "Node | None":
        return next((child for child in self.children if child.key == key), None)


@dataclass(frozen=True)
class NewMessage:
    """A message that no node stands for yet."""

    message: Mapping[str, Any]
    form: dict[str, Any]
    key: bytes
    kind: Kind


@dataclass(frozen=True)
class Path:
    """The nodes of one conversation from the root on, and their messages, to be compared in one go."""

    nodes: list[Node]
    messages: list[Mapping[str, Any] | None]
    plain: bool


@dataclass
class Place:
    """Where a request's messages lie in the tree: `known` nodes (the root first), then `new` messages. `tools`: what
    the template shows of them. `restored`: a message with the calls in it as they were sampled."""

    messages: Sequence[Mapping[str, Any]]
    tools: list[Any] | None
    restored: Restore
    known: list[Node]
    new: list[NewMessage] = field(default_factory=list)

    def __len__(self) -> int:
        """Messages."""
        return len(self.known) - 1 + len(self.new)

    def key(self, count: int) -> bytes:
        """Key of the first `count` messages."""
        return self.known[count].key if count < len(self.known) else self.new[count - len(self.known)].key

    def kind(self, count: int) -> Kind:
        """Kind of message number `count`, from 1."""
        if count >= len(self.known):
            return self.new[count - len(self.known)].kind
        kind = self.known[count].kind
        if kind is None:
            raise LookupError("the root is no message")
        return kind

    def outline(self, count: int) -> Outline:
        """Outline of the first `count` messages."""
        if count < len(self.known):
            return self.known[count].outline
        outline = self.known[-1].outline
        for new in self.new[: count - len(self.known) + 1]:
            outline = outline.after(new.kind)
        return outline

    def forms(self, start: int, end: int) -> list[dict[str, Any]]:
        """Canonical forms of the messages from index `start` to `end`, from 0."""
        bound = len(self.known) - 1
        return [
            self.new[i - bound].form
            if i >= bound
            else canonical(self.restored(self.messages[i]), field=f"messages.{i}")
            for i in range(start, end)
        ]


class MessageTree:
    """One tree for each list of tools that a template shows differently."""

    def __init__(self) -> None:
        self._roots: list[tuple[Any, Node]] = []
        self._paths: list[Path] = []

    def has_only_others(self, place: Place) -> bool:
        """Whether nothing is known with the tools of this place, but something is with others."""
        return not place.known[0].children and any(root.children for _, root in self._roots)

    def place(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any,
        restored: Restore,
        thought: Callable[[bytes], bool | None],
    ) -> Place:
        """Find a request's messages. `thought`: whether the answer with that key had reasoning, None if no answer has
        it; that outranks what the harness still shows. Raises InvalidRequest for a message without canonical form."""
        place = Place(messages, tools, restored, self._start(self._root(tools), messages))
        for index in range(len(place), len(messages)):
            message = messages[index]
            node = place.known[-1]
            found = None if place.new else self._equal(node, message)
            if found is None:
                form = canonical(restored(message), field=f"messages.{index}")
                key = chained(place.key(index), form)
                found = None if place.new else node.child(key)
                if found is None:
                    kind = kind_of(form)
                    had = thought(key)
                    kind = kind if had is None else kind._replace(thinks=had)
                    place.new.append(NewMessage(message, form, key, kind))
                    continue
                found.remember(message)
            place.known.append(found)
        return place

    def grow(self, place: Place) -> Node:
        """Make nodes for what is new in a place; its last node."""
        nodes = [*place.known]
        for new in place.new:
            nodes.append(branch(nodes[-1], new.key, new.message, new.kind))
        kept = [path for path in self._paths if path.nodes[-1] not in nodes][1 - _REMEMBERED_PATHS :]
        self._paths = [*kept, Path(nodes, [node.message for node in nodes[1:]], all(node.plain for node in nodes))]
        return nodes[-1]

    def _start(self, root: Node, messages: Sequence[Mapping[str, Any]]) -> list[Node]:
        """The nodes of a conversation that these messages go on with word for word, else the root alone."""
        for path in reversed(self._paths):
            count = len(path.messages)
            if path.nodes[0] is root and path.plain and path.messages == messages[:count]:
                return [*path.nodes]
        return [root]

    @staticmethod
    def _equal(node: Node, message: Any) -> Node | None:
        return next((child for child in node.children[-_TRIED:] if child.is_of(message)), None)

    def _root(self, tools: Any) -> Node:
        for known, root in self._roots:
            if known == tools and _same(known, tools):
                return root
        text = json.dumps(tools, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace") if tools else b""
        root = Node(hashlib.blake2b(text, digest_size=KEY_BYTES).digest(), None, None, EMPTY)
        self._roots.append((tools, root))
        return root


def branch(node: Node, key: bytes, message: Mapping[str, Any], kind: Kind) -> Node:
    """The child with that key, made if it is not there."""
    child = node.child(key)
    if child is None:
        child = Node(key, message, kind, node.outline.after(kind))
        node.children = (*node.children, child)
    return child


def chained(key: bytes, form: Mapping[str, Any]) -> bytes:
    """Key of a conversation with one message more, in canonical form.

    A tool call whose id the proxy has minted is that call, however the harness writes its arguments now.
    """
    calls = form.get("tool_calls", ())
    if any(is_minted(call.get("id")) for call in calls):
        form = {**form, "tool_calls": [_bare(call) if is_minted(call.get("id")) else call for call in calls]}
    return hashlib.blake2b(key + meaning(form).encode("utf-8", "replace"), digest_size=KEY_BYTES).digest()


def _bare(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": call["id"], "function": {"name": "", "arguments": ""}}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_plain(value: Any) -> bool:
    return all(leaf is None or isinstance(leaf, str) for leaf in _leaves(value))


def _same(one: Any, other: Any) -> bool:
    """Whether equal values are also of equal types: 1, 1.0 and true are equal to Python, and not to a model."""
    return all(type(a) is type(b) for a, b in zip(_leaves(one), _leaves(other), strict=True))
