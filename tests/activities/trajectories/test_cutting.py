"""Cutting trees and sharing out pieces, against all ways of doing it."""

import random

import numpy as np
import pytest

from activities.trajectories.artifact import PathHeader, TrajectoryHeader, TrajectoryTree
from activities.trajectories.cutting import EXACT_UP_TO, cut, share_out
from infra.micro_steps import TargetSpan
from workflows.messages.burst import Selection


def random_tree(seed: int, most_leaves: int) -> TrajectoryTree:
    """Segments of random length below one or more roots; every leaf segment is a path with one target at its end."""
    draw = random.Random(seed)
    parents, lengths, leaves = [], [], []

    def grow(parent: int, depth: int) -> None:
        segment = len(parents)
        parents.append(parent)
        lengths.append(draw.randint(1, 12))
        if depth == 0 or draw.random() < 0.3 or len(leaves) >= most_leaves:
            leaves.append(segment)
            return
        for _ in range(draw.randint(2, 3)):
            grow(segment, depth - 1)

    for _ in range(draw.randint(1, 2)):
        grow(-1, 3)
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    paths = tuple(
        PathHeader(
            leaf=f"c{leaf}",
            role="main",
            branch="start",
            segment=leaf,
            spans=(
                TargetSpan(call=f"c{leaf}", offset=0, start=int(offsets[leaf + 1]) - 1, end=int(offsets[leaf + 1])),
            ),
        )
        for leaf in leaves
    )
    size = int(offsets[-1])
    return TrajectoryTree(
        header=TrajectoryHeader(execution="e", seed=0, selection=Selection(), paths=paths),
        ids=np.arange(size, dtype=np.int32),
        segment_offsets=offsets,
        segment_parents=np.array(parents, np.int32),
        logprobs=np.zeros(size, np.float32),
        versions=np.where(np.isin(np.arange(size), [path.spans[0].start for path in paths]), 1, -1).astype(np.int64),
    )


def partitions(items: list[int]) -> list[list[list[int]]]:
    if not items:
        return [[]]
    first, *rest = items
    found = []
    for smaller in partitions(rest):
        found.append([[first], *smaller])
        found += [[*smaller[:k], [first, *smaller[k]], *smaller[k + 1 :]] for k in range(len(smaller))]
    return found


def tokens(tree: TrajectoryTree, piece) -> int:
    return tree.part(list(piece)).tokens


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_is_cut_with_the_least_recomputed_prefix(seed):
    tree = random_tree(seed, 4)
    paths = list(range(len(tree.header.paths)))
    budget = random.Random(seed).randint(5, 5 + tree.tokens)
    pieces = cut(tree, budget)
    assert sorted(path for piece in pieces for path in piece) == paths
    assert all(tokens(tree, piece) <= budget or len(piece) == 1 for piece in pieces)
    sizes = {}

    def size(piece) -> int:
        key = tuple(sorted(piece))
        if key not in sizes:
            sizes[key] = tokens(tree, key)
        return sizes[key]

    allowed = [way for way in partitions(paths) if all(size(piece) <= budget or len(piece) == 1 for piece in way)]
    assert sum(size(piece) for piece in pieces) == min(sum(size(piece) for piece in way) for way in allowed)


def test_a_tree_that_fits_is_not_cut():
    tree = random_tree(3, 4)
    roots = int((tree.segment_parents == -1).sum())
    assert len(cut(tree, tree.tokens)) == roots
    assert sum(tokens(tree, piece) for piece in cut(tree, tree.tokens)) == tree.tokens


def test_many_paths_are_cut_in_depth_first_order():
    """A star of more paths than are tried exhaustively: as many as fit share the trunk each time."""
    count, trunk = EXACT_UP_TO + 6, 20
    offsets = [0, trunk, *(trunk + 5 * (leaf + 1) for leaf in range(count))]
    whole = random_tree(0, 1)
    size = offsets[-1]
    spans = [
        TargetSpan(call="c", offset=0, start=offsets[leaf + 2] - 1, end=offsets[leaf + 2]) for leaf in range(count)
    ]
    paths = tuple(
        PathHeader(leaf="c", role="main", branch="start", segment=leaf + 1, spans=(span,))
        for leaf, span in enumerate(spans)
    )
    tree = TrajectoryTree(
        header=whole.header.model_copy(update={"paths": paths}),
        ids=np.zeros(size, np.int32),
        segment_offsets=np.array(offsets, np.int32),
        segment_parents=np.array([-1, *[0] * count], np.int32),
        logprobs=np.zeros(size, np.float32),
        versions=np.full(size, -1, np.int64),
    )
    pieces = cut(tree, trunk + 5 * 4)
    assert [len(piece) for piece in pieces] == [4, 4, 4, 4]
    assert sorted(path for piece in pieces for path in piece) == list(range(count))


@pytest.mark.parametrize("seed", range(60))
def test_micro_steps_are_few_and_level(seed):
    draw = random.Random(seed)
    lengths = [draw.randint(1, 100) for _ in range(draw.randint(1, 20))]
    budget = draw.randint(40, 300)
    shares = share_out(lengths, budget)
    assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in share) for share in shares]
    assert all(load <= budget or len(share) == 1 for load, share in zip(loads, shares, strict=True))
    if len(loads) > 1:
        last = min(lengths[index] for index in shares[loads.index(max(loads))])
        level = max(loads) - min(loads) <= last
        lowest = sorted(loads)[:2]
        assert level or sum(lowest) > budget


def test_nothing_is_shared_out_as_nothing():
    assert share_out([], 10) == []
