"""The prefix-shared tree of one execution's model calls, built in one pass over the ids they add.

Two calls share a prefix exactly as far as their token ids agree; nothing else counts, neither the order of arrival nor
messages. A node is a stretch of ids that was either context to every call or generated, from its first to its last id;
no node spans the end of a prompt or of an output. So the ids from the root to the end of a call's prompt node are what
its output was really conditioned on.

A target is (exact id prefix, position): an id that a delivered call of a trained role generated there. If several
generated the same id after the same prefix it is one target, with the log-prob and version of the call that arrived
first (`Node.source`). Which targets a path trains is not a property of nodes but of the path (`selection`): two paths
through one node train it once.

Work and memory grow with the ids the calls add, never with the length of what they were conditioned on.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from activities.trajectories.calls import Call, by_arrival
from activities.trajectories.roles import ROLE_PRIORITY
from workflows.messages.errors import AuditFailure

ROOT = 0


@dataclass(slots=True)
class Node:
    """`length` ids of the pool from `start`, the first of them at `depth` below the root.

    `source`: index of the trained call that generated them first, -1 where they are context to all of those.
    `created_by`: index of the call that led here first.
    """

    parent: int
    start: int
    length: int
    depth: int
    created_by: int
    source: int = -1

    @property
    def end(self) -> int:
        return self.depth + self.length


class Tree:
    """Calls of one execution in order of arrival, joined where their ids agree; only calls of `roles` have targets.

    `calls`: in order of arrival; `trained`: whether call k's output are targets; `prompt_ends`, `ends`: node with which
    call k's prompt, and all of call k, ends; `departs`: how many leading ids of call k were there before it; `nodes`:
    the first is the empty root; `pool`: int32, the ids of all nodes.

    Raises AuditFailure for a call whose parent is not there or shorter than what is shared with it.
    """

    def __init__(self, calls: Sequence[Call], roles: Collection[str] = ROLE_PRIORITY) -> None:
        self.calls = by_arrival(calls)
        self.trained = [call.trainable and call.role in roles for call in self.calls]
        self.pool = np.empty(sum(len(call.tail) + len(call.output) for call in self.calls), dtype=np.int32)
        self.nodes = [Node(parent=-1, start=0, length=0, depth=0, created_by=-1)]
        self.prompt_ends: list[int] = []
        self.ends: list[int] = []
        self.departs: list[int] = []
        self._filled = 0
        self._children: dict[tuple[int, int], int] = {}
        places: dict[str, int] = {}
        for index, call in enumerate(self.calls):
            self._insert(index, call, places)
            places[call.call] = index
        self.pool = self.pool[: self._filled]

    @property
    def tokens(self) -> int:
        """Distinct (prefix, id) pairs of all calls."""
        return self._filled

    def children(self) -> list[list[int]]:
        """Children of every node, in the order in which calls first led there."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for (parent, _), child in self._children.items():
            found[parent].append(child)
        return found

    def chain(self, node: int) -> list[int]:
        """Nodes from below the root down to `node`."""
        found: list[int] = []
        while node != ROOT:
            found.append(node)
            node = self.nodes[node].parent
        return found[::-1]

    def ids_of(self, node: int) -> np.ndarray:
        """The ids of one node, int32."""
        return self.pool[self.nodes[node].start : self.nodes[node].start + self.nodes[node].length]

    def ids_to(self, node: int) -> np.ndarray:
        """All ids from the root to the end of `node`, int32."""
        return np.concatenate([np.zeros(0, np.int32), *(self.ids_of(one) for one in self.chain(node))])

    def offset_of(self, node: int) -> int:
        """Which output id of its source call a generated node begins with."""
        return self.nodes[node].depth - self.calls[self.nodes[node].source].prompt_tokens

    # Building: the tree grows by one call; `at` is a node, `depth` a place inside it or at its end.

    def _insert(self, index: int, call: Call, places: dict[str, int]) -> None:
        at, depth = self._shared_with_parent(call, places)
        before = self._filled
        if depth == self.nodes[at].end and not len(call.tail):
            prompt_end = at
        else:
            prompt_end = self._grow(at, depth, call.tail, index)
        self.prompt_ends.append(prompt_end)
        source = index if self.trained[index] else -1
        end = self._grow(prompt_end, call.prompt_tokens, call.output, index, source) if len(call.output) else prompt_end
        self.ends.append(end)
        self.departs.append(self.nodes[end].end - (self._filled - before))

    def _shared_with_parent(self, call: Call, places: dict[str, int]) -> tuple[int, int]:
        if not call.shared:
            return ROOT, 0
        parent = places.get(call.parent or "")
        at = ROOT if parent is None else self.ends[parent]
        if self.nodes[at].end < call.shared:
            raise AuditFailure(f"call {call.call} shares {call.shared} ids with {call.parent}, which lacks them")
        while self.nodes[at].depth >= call.shared:
            at = self.nodes[at].parent
        return at, call.shared

    def _grow(self, at: int, depth: int, ids: np.ndarray, index: int, source: int = -1) -> int:
        """Follow `ids` down from a place, adding what is not there; returns the node that ends with the last of them.

        A node on the way that no trained call had generated so far gets `source`.
        """
        while True:
            node = self.nodes[at]
            if depth < node.end:
                there = self.pool[node.start + depth - node.depth : node.start + node.length]
                same = common_prefix(there, ids)
                depth, ids = depth + same, ids[same:]
                if depth < node.end:
                    at = self._split(at, depth)
            if source >= 0 and self.nodes[at].source < 0 and self.nodes[at].depth >= self.calls[source].prompt_tokens:
                self.nodes[at].source = source
            if not len(ids):
                return at
            child = self._children.get((at, int(ids[0])))
            if child is None:
                return self._add(at, depth, ids, index, source)
            at = child

    def _add(self, parent: int, depth: int, ids: np.ndarray, index: int, source: int) -> int:
        start = self._filled
        self._filled += len(ids)
        self.pool[start : self._filled] = ids
        self._children[parent, int(ids[0])] = len(self.nodes)
        self.nodes.append(Node(parent, start, len(ids), depth, index, source))
        return len(self.nodes) - 1

    def _split(self, at: int, depth: int) -> int:
        """Cut a node at `depth`, strictly inside it. The upper part is a new node and is returned: whatever ended with
        the old one still does."""
        lower, upper = self.nodes[at], len(self.nodes)
        size = depth - lower.depth
        self.nodes.append(Node(lower.parent, lower.start, size, lower.depth, lower.created_by, lower.source))
        self._children[lower.parent, int(self.pool[lower.start])] = upper
        lower.parent, lower.start, lower.length, lower.depth = upper, lower.start + size, lower.length - size, depth
        self._children[upper, int(self.pool[lower.start])] = at
        return upper


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """How many leading ids agree."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length
