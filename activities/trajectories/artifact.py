"""The stored result of processing one execution: a safetensors blob, kept until its group is packed.

Chosen paths lie back to back in `s` places, each cut after its last target. All arrays are 1-D:

    ids           int32    [s]
    path_offsets  int32    [p+1]  path k is places [path_offsets[k], path_offsets[k+1])
    targets       bool     [s]    True: trained on this path, and on no other
    logprobs      float32  [s]    behaviour log-probs at targets, 0 elsewhere
    versions      int64    [s]    weight version that sampled the target, -1 elsewhere

The metadata's ``header`` is a TrajectoryHeader as JSON; its spans count from the start of their path.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load, save

from activities.trajectories.selection import SelectedPath
from activities.trajectories.tree import Call
from infra.micro_steps import TargetSpan
from workflows.messages.base import Message


class PathHeader(Message):
    """One chosen path: its last call, its role, and where its targets come from."""

    leaf: str
    role: str
    spans: tuple[TargetSpan, ...]


class TrajectoryHeader(Message):
    execution: str
    paths: tuple[PathHeader, ...]


@dataclass(frozen=True, eq=False)
class TrajectoryPath:
    """One path as read back; arrays of one length."""

    execution: str
    header: PathHeader
    ids: np.ndarray
    targets: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray

    @property
    def target_tokens(self) -> int:
        return int(self.targets.sum())


def encode_trajectory(execution: str, chosen: Sequence[SelectedPath], calls: Sequence[Call]) -> bytes:
    """The blob of the chosen paths; `calls` are the tree's, which the paths' sources index."""
    lengths = [int(np.flatnonzero(one.targets)[-1]) + 1 for one in chosen]
    pairs = list(zip(chosen, lengths, strict=True))
    targets = [one.targets[:n] for one, n in pairs]
    arrays = {
        "ids": _joined([one.path.ids[:n] for one, n in pairs], np.int32),
        "path_offsets": np.cumsum([0, *lengths]).astype(np.int32),
        "targets": _joined(targets, np.bool_),
        "logprobs": _joined(
            [np.where(t, one.path.logprobs[: len(t)], 0) for (one, _), t in zip(pairs, targets, strict=True)],
            np.float32,
        ),
        "versions": _joined(
            [np.where(t, one.path.versions[: len(t)], -1) for (one, _), t in zip(pairs, targets, strict=True)], np.int64
        ),
    }
    header = TrajectoryHeader(
        execution=execution,
        paths=tuple(
            PathHeader(leaf=one.path.leaf.call, role=one.path.leaf.role, spans=_spans(one, calls)) for one in chosen
        ),
    )
    return save(arrays, metadata={"header": header.model_dump_json()})


def decode_trajectory(blob: bytes) -> list[TrajectoryPath]:
    """The paths of a blob, in the order they were chosen."""
    arrays = load(blob)
    size = int.from_bytes(blob[:8], "little")
    header = TrajectoryHeader.model_validate_json(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
    edges = itertools.pairwise(int(edge) for edge in arrays["path_offsets"])
    names = ("ids", "targets", "logprobs", "versions")
    return [
        TrajectoryPath(header.execution, path, **{name: arrays[name][start:end] for name in names})
        for path, (start, end) in zip(header.paths, edges, strict=True)
    ]


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def _spans(one: SelectedPath, calls: Sequence[Call]) -> tuple[TargetSpan, ...]:
    """Runs of consecutive targets that come from one call."""
    places = np.flatnonzero(one.targets)
    sources = one.path.source[places]
    breaks = np.flatnonzero((np.diff(places) != 1) | (np.diff(sources) != 0)) + 1
    spans: list[TargetSpan] = []
    for run in np.split(places, breaks):
        call, start = calls[int(one.path.source[run[0]])], int(run[0])
        spans.append(TargetSpan(call=call.call, offset=start - len(call.prompt), start=start, end=int(run[-1]) + 1))
    return tuple(spans)
