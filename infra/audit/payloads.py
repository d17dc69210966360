"""Micro-step payloads, read from the raw safetensors bytes (the format is described in `infra.micro_steps`).

Nothing is validated here that the audit itself wants to find.
"""

import json
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

_ARRAYS = ("ids", "positions", "path_offsets", "targets", "weights", "behaviour_logprobs", "versions")


@dataclass(frozen=True)
class Span:
    """Places [start, end) of the payload are output tokens [offset, ...) of `call`."""

    call: str
    offset: int
    start: int
    end: int


@dataclass(frozen=True)
class Path:
    """Places [start, end) of the payload: one path of `execution`."""

    execution: str
    start: int
    end: int
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
        edges = [int(edge) for edge in arrays["path_offsets"]]
        paths = tuple(
            Path(
                execution=path["execution"],
                start=start,
                end=end,
                spans=tuple(Span(s["call"], s["offset"], s["start"], s["end"]) for s in path["spans"]),
            )
            for path, start, end in zip(header["paths"], edges[:-1], edges[1:], strict=True)
        )
        places = {name: arrays[name] for name in _ARRAYS if name != "path_offsets"}
        if {len(array) for array in places.values()} != {len(places["ids"])} or edges[-1:] != [len(places["ids"])]:
            raise ValueError("arrays differ in length")
        return Payload(header["batch"], header["index"], header["group"], paths, **places)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from error
