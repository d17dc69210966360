"""The stored result of processing one execution: a safetensors blob, kept until its group is packed.

The chosen paths as one tree of segments, as in `infra.micro_steps`: depth-first, what paths share is there once. All
arrays are 1-D:

    ids               int32    [s]
    segment_offsets   int32    [g+1]
    segment_parents   int32    [g]
    logprobs          float32  [s]    behaviour log-probs at targets, 0 elsewhere
    versions          int64    [s]    weight version that sampled the target, -1 elsewhere

A path is its last segment and all that leads there; the targets it trains are its spans, which no two paths share. The
metadata's ``header`` is a TrajectoryHeader as JSON.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field
from safetensors.numpy import load, save

from activities.trajectories.segments import arrange
from infra.micro_steps import TargetSpan
from workflows.messages.base import Message
from workflows.messages.burst import Selection


class PathHeader(Message):
    """One chosen path: its last call, that call's role, why it is a branch, its last segment, what it trains."""

    leaf: str
    role: str
    branch: str
    segment: int = Field(ge=0)
    spans: tuple[TargetSpan, ...]

    @property
    def target_tokens(self) -> int:
        return sum(span.end - span.start for span in self.spans)


class TrajectoryHeader(Message):
    """`seed` and `selection`: with the calls' records, all that the choice of paths came from."""

    execution: str
    seed: int
    selection: Selection
    paths: tuple[PathHeader, ...]


@dataclass(frozen=True, eq=False)
class TrajectoryTree:
    """Header and arrays as the module describes them. Paths are in the order they were chosen."""

    header: TrajectoryHeader
    ids: np.ndarray
    segment_offsets: np.ndarray
    segment_parents: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def target_tokens(self) -> int:
        return sum(path.target_tokens for path in self.header.paths)

    def targets(self) -> np.ndarray:
        """bool [s]: trained by one of the paths."""
        found = np.zeros(self.tokens, dtype=bool)
        for path in self.header.paths:
            for span in path.spans:
                found[span.start : span.end] = True
        return found

    def chain(self, path: int) -> list[int]:
        """Segments of a path, root first."""
        found = [self.header.paths[path].segment]
        while (parent := int(self.segment_parents[found[-1]])) >= 0:
            found.append(parent)
        return found[::-1]

    def part(self, paths: Sequence[int]) -> "TrajectoryTree":
        """Only these paths, and of the targets only those that they train."""
        chains = [self.chain(path) for path in paths]
        arranged = arrange(chains)
        lengths = np.diff(self.segment_offsets)
        new_start: dict[int, int] = {}
        offsets, segment_of = [0], dict[int, int]()
        for index, segment in enumerate(arranged):
            start = offsets[-1]
            for piece in segment.pieces:
                new_start[piece], segment_of[piece] = start, index
                start += int(lengths[piece])
            offsets.append(start)
        order = [piece for segment in arranged for piece in segment.pieces]
        places = np.concatenate([np.zeros(0, np.int64), *(np.arange(*self._span(piece)) for piece in order)])
        headers = tuple(
            self.header.paths[path].model_copy(
                update={
                    "segment": segment_of[chain[-1]],
                    "spans": tuple(self._moved(span, new_start) for span in self.header.paths[path].spans),
                }
            )
            for path, chain in zip(paths, chains, strict=True)
        )
        part = TrajectoryTree(
            header=self.header.model_copy(update={"paths": headers}),
            ids=self.ids[places],
            segment_offsets=np.array(offsets, dtype=np.int32),
            segment_parents=np.array([segment.parent for segment in arranged], dtype=np.int32),
            logprobs=self.logprobs[places],
            versions=self.versions[places],
        )
        targets = part.targets()
        part.logprobs[~targets] = 0
        part.versions[~targets] = -1
        return part

    def _span(self, segment: int) -> tuple[int, int]:
        return int(self.segment_offsets[segment]), int(self.segment_offsets[segment + 1])

    def _moved(self, span: TargetSpan, new_start: dict[int, int]) -> TargetSpan:
        segment = int(np.searchsorted(self.segment_offsets, span.start, side="right")) - 1
        shift = new_start[segment] - int(self.segment_offsets[segment])
        return span.model_copy(update={"start": span.start + shift, "end": span.end + shift})


def encode_trajectory(tree: TrajectoryTree) -> bytes:
    """The blob of a tree."""
    arrays = {name: np.ascontiguousarray(getattr(tree, name)) for name in _ARRAYS}
    return save(arrays, metadata={"header": tree.header.model_dump_json()})


def decode_trajectory(blob: bytes) -> TrajectoryTree:
    """The tree of a blob."""
    arrays = load(blob)
    size = int.from_bytes(blob[:8], "little")
    header = TrajectoryHeader.model_validate_json(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
    return TrajectoryTree(header, **{name: arrays[name] for name in _ARRAYS})


_ARRAYS = ("ids", "segment_offsets", "segment_parents", "logprobs", "versions")
