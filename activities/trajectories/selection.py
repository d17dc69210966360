"""Which paths of an execution are trained.

Take the highest role class that still has unused targets; draw one of its leaves with probability proportional to its
unused targets; mark the whole root-to-leaf path as used; repeat until nothing is left or `limit` paths are chosen. A
target that several paths share is thus trained once, on the path that was chosen first.

The draw uses nothing but the tree, the seed and the settings, so it is repeated from the records.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from activities.trajectories.roles import ROLE_PRIORITY, rank
from activities.trajectories.tree import ROOT, Tree

MOST_PATHS = 5
"""J_max."""


@dataclass(frozen=True)
class Leaf:
    """A candidate path: the node it ends with, the call that ended there first, its targets."""

    node: int
    call: int
    role: str
    targets: int


@dataclass(frozen=True)
class ChosenPath:
    """A leaf that was drawn, and the nodes below the root down to it. It trains the nodes `trains`, and no other path
    does. `weight` of `total` unused targets of its class were its own when it was drawn."""

    leaf: Leaf
    nodes: tuple[int, ...]
    trains: tuple[int, ...]
    weight: int
    total: int


def candidates(tree: Tree) -> list[Leaf]:
    """One leaf per path that a trained call ends and no trained call continues, in order of those calls' arrival."""
    first: dict[int, int] = {}
    for index, node in enumerate(tree.ends):
        if tree.trained[index]:
            first.setdefault(node, index)
    continued: set[int] = set()
    for node in first:
        above = tree.nodes[node].parent
        while above not in continued and above != ROOT:
            continued.add(above)
            above = tree.nodes[above].parent
    targets = _targets_above(tree, [node for node in first if node not in continued])
    return [
        Leaf(node=node, call=index, role=tree.calls[index].role, targets=targets[node])
        for node, index in first.items()
        if node not in continued
    ]


def on_paths(tree: Tree, leaves: Sequence[Leaf]) -> set[int]:
    """The nodes that lie on a path to one of these leaves."""
    found = {ROOT}
    for leaf in leaves:
        node = leaf.node
        while node not in found:
            found.add(node)
            node = tree.nodes[node].parent
    return found - {ROOT}


def select_paths(
    tree: Tree,
    *,
    seed: str,
    limit: int | None = MOST_PATHS,
    priority: Sequence[str] = ROLE_PRIORITY,
) -> list[ChosenPath]:
    """The chosen paths in the order they were drawn. The same seed, calls and settings give the same choice."""
    leaves = [leaf for leaf in candidates(tree) if rank(leaf.role, priority) is not None]
    ranks = np.array([rank(leaf.role, priority) for leaf in leaves], dtype=np.int64)
    unused = np.array([leaf.targets for leaf in leaves], dtype=np.int64)
    order, below = _leaves_below(tree, leaves)
    draw, used = random.Random(seed), set[int]()
    chosen: list[ChosenPath] = []
    while (limit is None or len(chosen) < limit) and unused.any():
        of_class = np.flatnonzero((unused > 0) & (ranks == ranks[unused > 0].min()))
        ends = np.cumsum(unused[of_class])
        total = int(ends[-1])
        place = int(of_class[np.searchsorted(ends, int(draw.random() * total), side="right")])
        weight = int(unused[place])
        chain = tree.chain(leaves[place].node)
        fresh = [node for node in chain if node not in used]
        for node in fresh:
            if tree.nodes[node].source >= 0:
                start, end = below[node]
                unused[order[start:end]] -= tree.nodes[node].length
        used.update(fresh)
        trains = tuple(node for node in fresh if tree.nodes[node].source >= 0)
        chosen.append(ChosenPath(leaves[place], tuple(chain), trains, weight, total))
    return chosen


def _targets_above(tree: Tree, leaves: Sequence[int]) -> dict[int, int]:
    """Targets from the root to each of these nodes."""
    known = {ROOT: 0}
    for leaf in leaves:
        missing: list[int] = []
        node = leaf
        while node not in known:
            missing.append(node)
            node = tree.nodes[node].parent
        total = known[node]
        for one in reversed(missing):
            total += tree.nodes[one].length if tree.nodes[one].source >= 0 else 0
            known[one] = total
    return known


def _leaves_below(tree: Tree, leaves: Sequence[Leaf]) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Places in `leaves` in depth-first order, and for every node which stretch of that order lies below or at it."""
    place_of = {leaf.node: place for place, leaf in enumerate(leaves)}
    children = tree.children()
    order: list[int] = []
    stretches = [(0, 0)] * len(tree.nodes)
    to_visit, opened = [ROOT], dict[int, int]()
    while to_visit:
        node = to_visit[-1]
        if node in opened:
            to_visit.pop()
            stretches[node] = (opened[node], len(order))
            continue
        opened[node] = len(order)
        if node in place_of:
            order.append(place_of[node])
        to_visit.extend(reversed(children[node]))
    return np.array(order, dtype=np.int64), stretches
