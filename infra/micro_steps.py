"""The payload of a micro-step: a safetensors blob that the packer writes and the actors and the audit read.

Paths lie back to back in one sequence of `s` places. All arrays are 1-D:

    ids                 int32    [s]    token ids
    positions           int32    [s]    rotary position; counts from 0 in every path
    path_offsets        int32    [p+1]  path k is places [path_offsets[k], path_offsets[k+1])
    targets             bool     [s]    True: this token is trained, predicted from the place before it
    weights             float32  [s]    A_i / |T_i| at targets, 0 elsewhere
    behaviour_logprobs  float32  [s]    natural log-prob under the distribution sampled from; 0 elsewhere
    versions            int64    [s]    weight version that sampled the token; -1 elsewhere

The blob's metadata holds one key, ``header``: a MicroStepHeader as JSON. A path's first token is never a target: there
is nothing to predict it from.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from workflows.messages.base import Message
from workflows.messages.errors import InvalidInput

_DTYPES = {
    "ids": "int32",
    "positions": "int32",
    "path_offsets": "int32",
    "targets": "bool",
    "weights": "float32",
    "behaviour_logprobs": "float32",
    "versions": "int64",
}


class TargetSpan(Message):
    """Where targets come from: places [start, end) of the packed sequence are output tokens [offset, ...) of `call`."""

    call: str = Field(description="record id of the model call")
    offset: int = Field(ge=0)
    start: int = Field(ge=0)
    end: int = Field(ge=1)


class PackedPath(Message):
    """One root-to-leaf path. `target_total` is |T_i|, frozen at admission over all paths of the execution."""

    execution: str
    leaf: str = Field(description="record id of the path's last call")
    advantage: float
    target_total: int = Field(ge=0)
    spans: tuple[TargetSpan, ...] = ()


class MicroStepHeader(Message):
    """What the arrays alone do not say. `temperature` is that of the distribution the targets were sampled from."""

    batch: str
    index: int = Field(ge=0)
    group: str
    temperature: float = Field(1.0, gt=0)
    paths: tuple[PackedPath, ...] = ()


@dataclass(frozen=True, eq=False)
class PackedMicroStep:
    """Header and arrays as the module describes them."""

    header: MicroStepHeader
    ids: np.ndarray
    positions: np.ndarray
    path_offsets: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    behaviour_logprobs: np.ndarray
    versions: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def target_tokens(self) -> int:
        return int(self.targets.sum())

    def path_spans(self) -> tuple[tuple[int, int], ...]:
        """[start, end) of each path."""
        edges = [int(edge) for edge in self.path_offsets]
        return tuple(itertools.pairwise(edges))


def encode(step: PackedMicroStep) -> bytes:
    """The blob of a valid micro-step. Raises InvalidInput, naming the array that breaks a rule."""
    validate(step)
    arrays = {name: np.ascontiguousarray(getattr(step, name)) for name in _DTYPES}
    return save(arrays, metadata={"header": step.header.model_dump_json()})


def decode(blob: bytes) -> PackedMicroStep:
    """The micro-step of a blob, validated. Raises InvalidInput if it is none."""
    try:
        arrays = load(blob)
        size = int.from_bytes(blob[:8], "little")
        header = MicroStepHeader.model_validate_json(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
    except (SafetensorError, ValidationError, ValueError, KeyError) as error:
        raise InvalidInput(f"is no micro-step: {error}", field="payload") from error
    if arrays.keys() != _DTYPES.keys():
        raise InvalidInput(f"has arrays {sorted(arrays)}, expected {sorted(_DTYPES)}", field="payload")
    step = PackedMicroStep(header=header, **arrays)
    validate(step)
    return step


def validate(step: PackedMicroStep) -> None:
    """Raises InvalidInput for the first rule broken; the field is the array's name."""
    for field, is_right, rule in _rules(step):
        if not is_right:
            raise InvalidInput(f"micro-step {step.header.index} of {step.header.batch}: {rule}", field=field)


def _rules(step: PackedMicroStep) -> Iterator[tuple[str, Any, str]]:
    for name, dtype in _DTYPES.items():
        array = getattr(step, name)
        yield name, array.ndim == 1 and array.dtype == dtype, f"must be a 1-D {dtype} array"
        yield name, name == "path_offsets" or len(array) == step.tokens, f"must hold {step.tokens} places"
    edges, targets = step.path_offsets, step.targets
    yield "path_offsets", len(edges) == len(step.header.paths) + 1, "must hold one edge more than there are paths"
    yield "path_offsets", edges[0] == 0 and edges[-1] == step.tokens, "must run from 0 to the end"
    yield "path_offsets", (np.diff(edges) > 0).all(), "must rise: an empty path is no path"
    places = np.arange(step.tokens) - np.repeat(edges[:-1], np.diff(edges))
    yield "positions", (step.positions == places).all(), "must count from 0 in every path"
    yield "ids", (step.ids >= 0).all(), "must not be negative"
    yield "targets", not targets[edges[:-1]].any(), "a path's first token cannot be a target"
    for name in ("weights", "behaviour_logprobs"):
        array = getattr(step, name)
        yield name, np.isfinite(array).all(), "must be finite"
        yield name, (array[~targets] == 0).all(), "must be 0 where there is no target"
    yield "behaviour_logprobs", (step.behaviour_logprobs <= 1e-3).all(), "a log-prob cannot be positive"
    yield "versions", (step.versions[targets] >= 0).all(), "every target needs the version that sampled it"
    yield "versions", (step.versions[~targets] == -1).all(), "must be -1 where there is no target"
    covered = np.zeros(step.tokens, dtype=np.int64)
    for path, (start, end) in zip(step.header.paths, step.path_spans(), strict=True):
        for span in path.spans:
            yield "paths", start <= span.start < span.end <= end, "a span must lie inside its path"
            covered[span.start : span.end] += 1
        mine = step.weights[start:end][targets[start:end]]
        yield "paths", len(mine) <= path.target_total, "an execution has more targets than |T_i|"
        weight = np.float32(path.advantage / max(path.target_total, 1))
        yield "weights", np.isclose(mine, weight, rtol=1e-6, atol=0).all(), "must be A_i / |T_i| at every target"
    yield "paths", (covered == targets).all(), "spans must cover every target once and nothing else"
