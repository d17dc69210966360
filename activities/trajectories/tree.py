"""The prefix-shared tree of one execution's model calls, and the targets on its root-to-leaf paths.

Two calls share a prefix exactly as far as their token ids agree; nothing else counts, neither the order of arrival
nor messages. A target is (exact id prefix, position): a token that some call generated there. If several calls
generated the same token after the same prefix it is one target, with the log-prob and version of the call that
arrived first. The same position of the same ids can be context for one call and a target of another, so targets
belong to paths, never to tree nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Call:
    """One finished model call. `prompt` and `output`: int32 ids; `logprobs` float32 and `versions` int64, as long as
    `output`. `sequence` is the order of arrival."""

    call: str
    sequence: int
    role: str
    prompt: np.ndarray
    output: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray

    @cached_property
    def ids(self) -> np.ndarray:
        return np.concatenate([self.prompt, self.output]).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Path:
    """Root to leaf: everything the leaf call was conditioned on, and what it generated.

    All arrays have the length of `ids`. `source` is the index (into the tree's calls) of the call that a target
    comes from, -1 where there is none; `logprobs` is 0 and `versions` -1 there.
    """

    leaf: Call
    ids: np.ndarray
    source: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        return self.source >= 0


class Tree:
    """Calls of one execution in order of arrival, joined where their ids agree."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: call.sequence)
        self.parents, self.leaves = _join(self.calls)

    def paths(self) -> list[Path]:
        """One path per leaf, in order of the leaves' arrival."""
        return [self._path(self.calls[leaf]) for leaf in self.leaves]

    def _path(self, leaf: Call) -> Path:
        ids = leaf.ids
        source = np.full(len(ids), -1, dtype=np.int32)
        logprobs = np.zeros(len(ids), dtype=np.float32)
        versions = np.full(len(ids), -1, dtype=np.int64)
        for index, call in enumerate(self.calls):
            start, end = len(call.prompt), shared_prefix(call.ids, ids)
            if end <= start:
                continue
            free = np.flatnonzero(source[start:end] < 0)
            source[start + free] = index
            logprobs[start + free] = call.logprobs[free]
            versions[start + free] = call.versions[free]
        return Path(leaf, ids, source, logprobs, versions)


def shared_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """How many leading ids agree."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length


def _join(calls: Sequence[Call]) -> tuple[list[int | None], list[int]]:
    """Parent of each call (the call whose ids are the longest beginning of its prompt), and the leaves.

    In the order of their ids, everything that continues a sequence follows it directly; so one pass with a stack of
    the beginnings of the current sequence is enough.
    """
    keys = [call.ids.astype(">i4").tobytes() for call in calls]
    order = sorted(range(len(calls)), key=lambda index: (keys[index], calls[index].sequence))
    parents: list[int | None] = [None] * len(calls)
    inner: set[int] = set()
    stack: list[int] = []
    for index in order:
        while stack and not keys[index].startswith(keys[stack[-1]]):
            stack.pop()
        if stack and keys[index] == keys[stack[-1]]:
            inner.add(index)  # the very same ids: the one that arrived first stands for both
        elif stack:
            inner.add(stack[-1])
        fits = [above for above in stack if len(calls[above].ids) <= len(calls[index].prompt)]
        parents[index] = fits[-1] if fits else None
        if index not in inner:
            stack.append(index)
    return parents, [index for index in range(len(calls)) if index not in inner]
