"""The tree as messages: how many there are, and how many a reader of every path by itself would visit.

A message begins at a turn-start token of the context; the answer belongs to the message whose header precedes it.
Where the ids of such tokens are not known, what a call adds to its history counts as
one message and its answer as another.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from activities.trajectories.selection import Leaf, on_paths
from activities.trajectories.tree import ROOT, Tree


@dataclass(frozen=True)
class MessageCounts:
    """`unique`: message nodes of the candidate paths' tree; `expanded`: the same summed path by path."""

    unique: int
    expanded: int

    @property
    def repeated(self) -> int:
        """Visits to shared prefixes that the tree saves."""
        return self.expanded - self.unique


def count_messages(tree: Tree, leaves: Sequence[Leaf], turn_starts: Collection[int] = ()) -> MessageCounts:
    """Message nodes of the paths to `leaves`. Two paths share a message as far as they share it whole."""
    ends = _by_turn_start(tree, turn_starts) if turn_starts else _by_call(tree)
    last = 1 if turn_starts else 0  # the message that a path ends with has no turn start behind it
    nodes = on_paths(tree, leaves)
    above: dict[int, int] = {ROOT: 0}
    for node in sorted(nodes, key=lambda one: tree.nodes[one].depth):
        above[node] = above[tree.nodes[node].parent] + ends[node]
    return MessageCounts(
        unique=sum(ends[node] for node in nodes) + last * len(leaves),
        expanded=sum(above[leaf.node] + last for leaf in leaves),
    )


def _by_turn_start(tree: Tree, turn_starts: Collection[int]) -> list[int]:
    """Messages that end inside or just before each node: one per turn start in the context, the first of all aside."""
    starts = np.concatenate([[0], np.cumsum(np.isin(tree.pool, list(turn_starts)))])
    found: list[int] = []
    for node in tree.nodes:
        count = int(starts[node.start + node.length] - starts[node.start]) if node.source < 0 else 0
        if count and node.depth == 0 and tree.pool[node.start] in turn_starts:
            count -= 1
        found.append(count)
    return found


def _by_call(tree: Tree) -> list[int]:
    """1 for every node that ends a prompt or an answer of a trained call."""
    ended = {
        node
        for ends in (tree.prompt_ends, tree.ends)
        for node, trained in zip(ends, tree.trained, strict=True)
        if trained
    }
    return [int(node in ended) for node in range(len(tree.nodes))]
