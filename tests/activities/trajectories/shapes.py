"""Calls made from plain numbers, and what a tree of them trains."""

from collections.abc import Sequence

import numpy as np

from activities.trajectories.artifact import TrajectoryTree
from activities.trajectories.calls import Call
from activities.trajectories.growth import GrownTree
from activities.trajectories.harvest import harvest
from activities.trajectories.selection import candidates, select_paths
from activities.trajectories.tree import Tree
from workflows.messages.burst import Selection


def call(
    sequence: int, prompt: Sequence[int], output: Sequence[int], role: str = "main", version: int = 0, **more
) -> Call:
    """A call whose whole prompt is its own. Log-probs tell which call and which of its ids they belong to."""
    return Call(
        call=f"c{sequence}",
        sequence=sequence,
        role=role,
        tail=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        logprobs=np.array([-(sequence + 1) - place / 10 for place in range(len(output))], np.float32),
        spans=((version, len(output)),) if output else (),
        **more,
    )


def ids_of(tree: Tree, index: int) -> list[int]:
    """Prompt and output of a call."""
    return tree.ids_to(tree.ends[index]).tolist()


def leaf_calls(tree: Tree) -> list[str]:
    return [tree.calls[leaf.call].call for leaf in candidates(tree)]


def trajectory(tree: Tree, seed: str = "s", **options) -> TrajectoryTree:
    chosen = select_paths(tree, seed=seed, **options)
    return harvest(GrownTree("e", 0, Selection(), tree, candidates(tree), chosen))


def targets_of(stored: TrajectoryTree) -> list[tuple[tuple[int, ...], str, float, int]]:
    """(exact ids up to and with the target, call, log-prob, version) of every target, path by path."""
    found = []
    for index, path in enumerate(stored.header.paths):
        whole = places_of(stored, index)
        for span in path.spans:
            for place in range(span.start, span.end):
                upto = whole[: whole.index(place) + 1]
                prefix = tuple(int(one) for one in stored.ids[upto])
                found.append((prefix, span.call, float(stored.logprobs[place]), int(stored.versions[place])))
    return found


def places_of(stored: TrajectoryTree, path: int) -> list[int]:
    """Places from the root to the end of a path."""
    edges = stored.segment_offsets
    return [place for segment in stored.chain(path) for place in range(int(edges[segment]), int(edges[segment + 1]))]
