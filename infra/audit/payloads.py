"""Micro-step payloads, read from the raw safetensors bytes (the format is described in `infra.micro_steps`).

Nothing is validated here that the audit itself wants to find. A path is read as the places that lead to its end, root
first, whatever the layout: segments of its own, or those it shares with others.
"""

import json
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

_PLACES = ("ids", "positions", "targets", "weights", "behaviour_logprobs", "versions")


@dataclass(frozen=True)
class Span:
    """Places [start, end) of the payload are output tokens [offset, ...) of `call`."""

    call: str
    offset: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Path:
    """One path of `execution`; `places` int64 [n]: from its root to its end. `spans`: the targets it trains."""

    execution: str
    places: np.ndarray
    spans: tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class Payload:
    """One payload of s places; every array is [s]."""

    batch: str
    index: int
    group: str
    paths: tuple[Path, ...]
    ids: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    behaviour_logprobs: np.ndarray
    versions: np.ndarray


def read_payload(blob: bytes) -> Payload:
    """The payload of a blob. Raises ValueError when it is none."""
    try:
        arrays = load(blob)
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
        places = {name: arrays[name] for name in _PLACES}
        edges, parents = arrays["segment_offsets"].tolist(), arrays["segment_parents"].tolist()
        if {len(array) for array in places.values()} != {len(places["ids"])} or edges[-1:] != [len(places["ids"])]:
            raise ValueError("arrays differ in length")
        paths = tuple(
            Path(
                execution=path["execution"],
                places=_to_the_end_of(path["segment"], edges, parents),
                spans=tuple(Span(s["call"], s["offset"], s["start"], s["end"]) for s in path["spans"]),
            )
            for path in header["paths"]
        )
        return Payload(header["batch"], header["index"], header["group"], paths, **places)
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from error


def _to_the_end_of(segment: int, edges: list[int], parents: list[int]) -> np.ndarray:
    """Places of the segment and of all it continues, root first."""
    pieces: list[np.ndarray] = []
    while segment >= 0:
        pieces.append(np.arange(edges[segment], edges[segment + 1]))
        if parents[segment] >= segment:
            raise ValueError(f"segment {segment} continues segment {parents[segment]}")
        segment = parents[segment]
    return np.concatenate(pieces[::-1])
