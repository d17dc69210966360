"""Random trees of segments, and the same tokens as a tree and as flat paths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from infra.micro_steps import MicroStepHeader, PackedMicroStep, PackedPath, TargetSpan, validate
from tests.workers.cell.training.material import VOCAB


@dataclass(frozen=True)
class Tree:
    """`parents` [g] in depth-first order and `sizes` [g] of the segments; `sampled` [g]: its tokens are targets."""

    parents: tuple[int, ...]
    sizes: tuple[int, ...]
    sampled: tuple[bool, ...]

    @property
    def offsets(self) -> list[int]:
        return [0, *np.cumsum(self.sizes).tolist()]

    @property
    def leaves(self) -> list[int]:
        return [k for k in range(len(self.parents)) if k not in self.parents]

    def chain(self, segment: int) -> list[int]:
        chain = [segment]
        while self.parents[chain[-1]] >= 0:
            chain.append(self.parents[chain[-1]])
        return chain[::-1]


@st.composite
def trees(draw: st.DrawFn, most: int = 9, longest: int = 12) -> Tree:
    """Several levels, siblings, chains of only children, several roots; somewhere a target."""
    parents: list[int] = []
    above: list[int] = []  # from the last segment up to its root
    for segment in range(draw(st.integers(1, most))):
        up = draw(st.integers(0, len(above)))
        above = above[: len(above) - up]
        parents.append(above[-1] if above else -1)
        above.append(segment)
    count = len(parents)
    sizes = draw(st.lists(st.integers(1, longest), min_size=count, max_size=count))
    sampled = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return Tree(tuple(parents), tuple(sizes), tuple(sampled))


class Tokens:
    """Random ids, weights and behaviour log-probs of a tree, by place."""

    def __init__(self, tree: Tree, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.tree, count = tree, sum(tree.sizes)
        self.ids = random.integers(0, VOCAB, count).astype(np.int32)
        self.behaviour = (-4.5 + 0.4 * random.standard_normal(count)).astype(np.float32)
        roots = {tree.offsets[k] for k, parent in enumerate(tree.parents) if parent < 0}
        self.targets = np.repeat(np.array(tree.sampled), tree.sizes)
        self.targets[sorted(roots)] = False

    def as_tree(self) -> PackedMicroStep:
        tree = self.tree
        before = {k: sum(tree.sizes[a] for a in tree.chain(k)[:-1]) for k in range(len(tree.parents))}
        positions = np.concatenate([before[k] + np.arange(size) for k, size in enumerate(tree.sizes)])
        owner: dict[int, int] = {}
        for leaf in tree.leaves:
            for segment in tree.chain(leaf):
                owner.setdefault(segment, leaf)
        segments = {leaf: [k for k, of in owner.items() if of == leaf] for leaf in tree.leaves}
        spans = {leaf: [(tree.offsets[k], tree.offsets[k + 1]) for k in segments[leaf]] for leaf in tree.leaves}
        return self._step("tree", np.arange(len(self.ids)), positions, tree.offsets, tree.parents, spans, tree.leaves)

    def as_paths(self) -> PackedMicroStep:
        """Every root-to-leaf path whole; what several share is a target in the first one only."""
        tree, places, positions, edges = self.tree, [], [], [0]
        spans: dict[int, list[tuple[int, int]]] = {}
        seen: set[int] = set()
        for number, leaf in enumerate(tree.leaves):
            spans[number], start = [], len(places)
            for segment in tree.chain(leaf):
                first = len(places)
                places += range(tree.offsets[segment], tree.offsets[segment + 1])
                if segment not in seen:
                    spans[number].append((first, len(places)))
                seen.add(segment)
            positions += range(len(places) - start)
            edges.append(len(places))
        parents = [-1] * len(tree.leaves)
        return self._step("flat", np.array(places), np.array(positions), edges, parents, spans, list(spans))

    def _step(
        self,
        layout: str,
        places: np.ndarray,
        positions: np.ndarray,
        edges: Sequence[int],
        parents: Sequence[int],
        spans: dict[int, list[tuple[int, int]]],
        ends: list[int],
    ) -> PackedMicroStep:
        counted = np.zeros(len(places), bool)
        for path in spans.values():
            for start, end in path:
                counted[start:end] = True
        targets = self.targets[places] & counted
        total = int(self.targets.sum())
        weight = np.float32(0.7 / max(total, 1))
        paths = [
            PackedPath(
                execution="e",
                leaf=f"c{number}",
                segment=ends[number],
                advantage=0.7,
                target_total=total,
                spans=tuple(
                    TargetSpan(call=f"c{number}", offset=run[0], start=run[0], end=run[1])
                    for start, end in path
                    for run in _runs(targets, start, end)
                ),
            )
            for number, path in enumerate(spans.values())
        ]
        step = PackedMicroStep(
            header=MicroStepHeader(batch="b", index=0, group="g", layout=layout, paths=tuple(paths)),  # pyright: ignore[reportArgumentType]
            ids=self.ids[places],
            positions=positions.astype(np.int32),
            segment_offsets=np.array(edges, np.int32),
            segment_parents=np.array(parents, np.int32),
            targets=targets,
            weights=np.where(targets, weight, 0).astype(np.float32),
            behaviour_logprobs=np.where(targets, self.behaviour[places], 0).astype(np.float32),
            versions=np.where(targets, 0, -1).astype(np.int64),
        )
        validate(step)
        return step


def _runs(targets: np.ndarray, start: int, end: int) -> list[tuple[int, int]]:
    """Stretches of targets inside [start, end); only a root's first token breaks a sampled segment."""
    places = np.flatnonzero(targets[start:end]) + start
    return [(int(places[0]), int(places[-1]) + 1)] if len(places) else []
