"""Cutting trees to a token budget, and sharing out the pieces over micro-steps.

A piece is a set of an execution's chosen paths with everything that leads to them; what two pieces share is computed
in both, and trained in one. A tree that fits is one piece. One that does not is cut so that the least is computed
again: by trying all ways while there are few paths, and beyond that all ways of cutting the depth-first order. A path
longer than the budget is a piece, and a micro-step, of its own.

Balance: the pieces of a group go, longest first, into as few micro-steps as first fit needs, each to the emptiest. So
the longest micro-step exceeds the shortest by no more than one piece, the last that it took. Where that would break
the budget first fit stands: then any two micro-steps together exceed the budget, so at most one is less than half full.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from activities.trajectories.artifact import TrajectoryTree

EXACT_UP_TO = 10
"""Paths of one root for which every way of cutting is tried."""


def cut(tree: TrajectoryTree, token_budget: int) -> list[tuple[int, ...]]:
    """The pieces of a tree, as paths (their places in the header). Paths without a common root never share a piece."""
    pieces: list[tuple[int, ...]] = []
    by_root: dict[int, list[int]] = {}
    for path in range(len(tree.header.paths)):
        by_root.setdefault(tree.chain(path)[0], []).append(path)
    for paths in by_root.values():
        size = _sizes(tree, paths)
        everything = (1 << len(paths)) - 1
        if size(everything) <= token_budget:
            chosen = [everything]
        elif len(paths) <= EXACT_UP_TO:
            chosen = _least_of_all(len(paths), size, token_budget)
        else:
            chosen = _least_of_order(tree, paths, size, token_budget)
        pieces += [tuple(path for bit, path in enumerate(paths) if mask >> bit & 1) for mask in chosen]
    return pieces


def share_out(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Which pieces (by index) go into which micro-step; pieces of equal length keep their order."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    fitted: list[list[int]] = []
    room: list[int] = []
    for index in order:
        place = next((place for place, left in enumerate(room) if lengths[index] <= left), None)
        if place is None:
            place = len(fitted)
            fitted.append([])
            room.append(token_budget)
        fitted[place].append(index)
        room[place] -= lengths[index]
    level: list[list[int]] = [[] for _ in fitted]
    filled = [0] * len(fitted)
    for index in order:
        place = filled.index(min(filled))
        level[place].append(index)
        filled[place] += lengths[index]
    limit = max([token_budget, *lengths])
    return level if max(filled, default=0) <= limit else fitted


def _sizes(tree: TrajectoryTree, paths: Sequence[int]) -> Callable[[int], int]:
    """Tokens of a piece, by the bits of its paths."""
    lengths = np.diff(tree.segment_offsets).tolist()
    below: dict[int, int] = {}
    for bit, path in enumerate(paths):
        for segment in tree.chain(path):
            below[segment] = below.get(segment, 0) | 1 << bit
    segments = [(mask, lengths[segment]) for segment, mask in below.items()]
    return cache(lambda piece: sum(length for mask, length in segments if mask & piece))


def _least_of_all(count: int, size: Callable[[int], int], token_budget: int) -> list[int]:
    """Over all partitions: fewest tokens, then fewest pieces."""

    @cache
    def best(rest: int) -> tuple[int, int, tuple[int, ...]]:
        if not rest:
            return 0, 0, ()
        first = rest & -rest
        others = part = rest ^ first
        options = []
        while True:
            piece = first | part
            if piece == first or size(piece) <= token_budget:
                tokens, pieces, chosen = best(rest ^ piece)
                options.append((tokens + size(piece), pieces + 1, (piece, *chosen)))
            if not part:
                return min(options)
            part = (part - 1) & others

    return list(best((1 << count) - 1)[2])


def _least_of_order(
    tree: TrajectoryTree, paths: Sequence[int], size: Callable[[int], int], token_budget: int
) -> list[int]:
    """Over all cuts of the depth-first order: fewest tokens, then fewest pieces."""
    order = sorted(range(len(paths)), key=lambda bit: tree.header.paths[paths[bit]].segment)
    best: list[tuple[int, int, int]] = [(0, 0, 0)]  # tokens, pieces and the last piece's beginning, up to each path
    for end in range(1, len(order) + 1):
        options: list[tuple[int, int, int]] = []
        piece = 0
        for start in range(end - 1, -1, -1):
            piece |= 1 << order[start]
            if start < end - 1 and size(piece) > token_budget:
                break
            options.append((best[start][0] + size(piece), best[start][1] + 1, start))
        best.append(min(options))
    chosen: list[int] = []
    end = len(order)
    while end:
        start = best[end][2]
        chosen.append(sum(1 << bit for bit in order[start:end]))
        end = start
    return chosen[::-1]
