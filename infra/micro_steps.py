"""The payload of a micro-step: a safetensors blob that the packer writes and the actors and the audit read.

One sequence of `s` places, cut into `g` segments. A segment continues its parent segment: its tokens attend to every
place of their ancestors (the parent, its parent, ... up to a root) and causally to their own segment, to nothing else.
Segments lie in depth-first order, so a parent comes before its children and all that descends from a segment follows it
without a gap. Two layouts are written, and one format holds both:

- ``flat``: every segment is a whole path and a root; a prefix that paths share is there once per path;
- ``tree``: the paths of an execution form a tree, and what they share is there, and computed, once.

All arrays are 1-D:

    ids                 int32    [s]    token ids
    positions           int32    [s]    rotary position = depth: 0 at a root's first place, then one more each
    segment_offsets     int32    [g+1]  segment k is places [segment_offsets[k], segment_offsets[k+1]); never empty
    segment_parents     int32    [g]    index of the segment that k continues, below k; -1: a root
    targets             bool     [s]    True: this token is trained, predicted from the place before it
    weights             float32  [s]    A_i / |T_i| at targets, 0 elsewhere
    behaviour_logprobs  float32  [s]    natural log-prob under the distribution sampled from; 0 elsewhere
    versions            int64    [s]    weight version that sampled the token; -1 elsewhere

"The place before" (`predecessors`) is the one to the left or, for a segment's first token, the last of its parent; one
place may thus predict the first tokens of several children. A root's first token is never a target: there is nothing
to predict it from. A place is a target at most once, whatever number of paths lead through it, so the gradient of a
micro-step is the plain sum over its targets in either layout.

When a tree is cut over several micro-steps, what they share is in each of them; it is a target in one of them only.

The blob's metadata holds one key, ``header``: a MicroStepHeader as JSON.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from workflows.messages.base import Message
from workflows.messages.errors import InvalidInput

_DTYPES = {
    "ids": "int32",
    "positions": "int32",
    "segment_offsets": "int32",
    "segment_parents": "int32",
    "targets": "bool",
    "weights": "float32",
    "behaviour_logprobs": "float32",
    "versions": "int64",
}
_BY_SEGMENT = frozenset({"segment_offsets", "segment_parents"})


class TargetSpan(Message):
    """Where targets come from: places [start, end) of the packed sequence are output tokens [offset, ...) of `call`."""

    call: str = Field(description="record id of the model call")
    offset: int = Field(ge=0)
    start: int = Field(ge=0)
    end: int = Field(ge=1)


class PackedPath(Message):
    """One root-to-leaf path, or what a micro-step holds of it: `segment` and its ancestors.

    `spans` are the targets this path trains, each inside one of its segments. `target_total` is |T_i|, frozen at
    admission over all paths of the execution.
    """

    execution: str
    leaf: str = Field(description="record id of the path's last call")
    role: str = Field(default="main", description="role of that call, and the path's class")
    branch: str = Field(default="", description="why the path is a branch of its own")
    segment: int = Field(ge=0, description="the path's last segment here")
    advantage: float
    target_total: int = Field(ge=0)
    spans: tuple[TargetSpan, ...] = ()


class Provenance(Message):
    """Where an execution's targets come from; its calls' rows and its own row say the rest."""

    execution: str
    task: str
    harness: str
    outcome: str
    reward: float | None
    oldest_version: int | None = Field(description="oldest weight version among its targets")
    newest_version: int | None
    evaluator: str = Field(default="", description="sha256 of the tests that gave the reward")
    trajectory_sha256: str = Field(description="of the stored trajectory that was packed")


class MicroStepHeader(Message):
    """What the arrays alone do not say. `temperature` is that of the distribution the targets were sampled from."""

    batch: str
    index: int = Field(ge=0)
    group: str
    layout: Literal["flat", "tree"] = "flat"
    temperature: float = Field(1.0, gt=0)
    paths: tuple[PackedPath, ...] = ()
    executions: tuple[Provenance, ...] = ()


@dataclass(frozen=True, eq=False)
class PackedMicroStep:
    """Header and arrays as the module describes them."""

    header: MicroStepHeader
    ids: np.ndarray
    positions: np.ndarray
    segment_offsets: np.ndarray
    segment_parents: np.ndarray
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

    @property
    def path_tokens(self) -> int:
        """What `tokens` would be with every path laid out on its own; however a batch is cut, it sums to the same."""
        lengths = np.diff(self.segment_offsets)
        return sum(int(lengths[list(self.ancestors(path.segment))].sum()) for path in self.header.paths)

    def shares(self) -> np.ndarray:
        """float32 [s]: 1 / |T_i| at targets, 0 elsewhere: the weight of a term that has no advantage in it."""
        shares = np.zeros(self.tokens, dtype=np.float32)
        for path in self.header.paths:
            for span in path.spans:
                shares[span.start : span.end] = 1.0 / path.target_total
        return shares

    def segment_spans(self) -> tuple[tuple[int, int], ...]:
        """[start, end) of each segment."""
        return tuple(itertools.pairwise(self.segment_offsets.tolist()))

    def ancestors(self, segment: int) -> tuple[int, ...]:
        """The segments that `segment` continues, root first, itself last."""
        chain = [segment]
        while (parent := int(self.segment_parents[chain[-1]])) >= 0:
            chain.append(parent)
        return tuple(reversed(chain))

    def predecessors(self) -> np.ndarray:
        """int32 [s]: the place each token is predicted from; -1 at a root's first place."""
        before = np.arange(-1, self.tokens - 1, dtype=np.int32)
        first = self.segment_offsets[:-1]
        before[first] = np.where(self.segment_parents >= 0, self.segment_offsets[self.segment_parents + 1] - 1, -1)
        return before


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
        yield name, name in _BY_SEGMENT or len(array) == step.tokens, f"must hold {step.tokens} places"
    edges, parents, targets = step.segment_offsets, step.segment_parents, step.targets
    yield "segment_offsets", len(edges) == len(parents) + 1, "must hold one edge more than there are segments"
    yield "segment_offsets", edges[0] == 0 and edges[-1] == step.tokens, "must run from 0 to the end"
    yield "segment_offsets", (np.diff(edges) > 0).all(), "must rise: an empty segment is no segment"
    yield "segment_parents", _is_depth_first(parents.tolist()), "must name earlier segments, in depth-first order"
    before = step.predecessors()
    roots = before < 0
    yield "positions", (step.positions == np.where(roots, 0, step.positions[before] + 1)).all(), "must be the depth"
    yield "ids", (step.ids >= 0).all(), "must not be negative"
    yield "targets", not targets[roots].any(), "a root's first token cannot be a target"
    for name in ("weights", "behaviour_logprobs"):
        array = getattr(step, name)
        yield name, np.isfinite(array).all(), "must be finite"
        yield name, (array[~targets] == 0).all(), "must be 0 where there is no target"
    yield "behaviour_logprobs", (step.behaviour_logprobs <= 1e-3).all(), "a log-prob cannot be positive"
    yield "versions", (step.versions[targets] >= 0).all(), "every target needs the version that sampled it"
    yield "versions", (step.versions[~targets] == -1).all(), "must be -1 where there is no target"
    yield from _path_rules(step)


def _path_rules(step: PackedMicroStep) -> Iterator[tuple[str, Any, str]]:
    flat = step.header.layout == "flat"
    yield "segment_parents", not flat or (step.segment_parents == -1).all(), "must be -1 in the flat layout"
    mine = [path.segment for path in step.header.paths]
    whole = mine == list(range(len(step.segment_parents)))
    yield "paths", whole or not flat, "must be the segments, in their order, in the flat layout"
    covered = np.zeros(step.tokens, dtype=np.int64)
    totals: Counter[str] = Counter()
    for path in step.header.paths:
        yield "paths", path.segment < len(step.segment_parents), "a path must end in a segment that is there"
        chain = step.ancestors(path.segment)
        weight = np.float32(path.advantage / max(path.target_total, 1))
        for span in path.spans:
            inside = any(step.segment_offsets[k] <= span.start < span.end <= step.segment_offsets[k + 1] for k in chain)
            yield "paths", inside, "a span must lie inside one segment of its path"
            covered[span.start : span.end] += 1
            totals[path.execution] += span.end - span.start
            fits = totals[path.execution] <= path.target_total
            yield "paths", fits, "an execution has more targets than |T_i|"
            places = slice(span.start, span.end)
            near = np.isclose(step.weights[places][step.targets[places]], weight, rtol=1e-6, atol=0).all()
            yield "weights", near, "must be A_i / |T_i| at every target"
    yield "paths", (covered == step.targets).all(), "spans must cover every target once and nothing else"


def _is_depth_first(parents: list[int]) -> bool:
    open_segments: list[int] = []
    for segment, parent in enumerate(parents):
        while open_segments and open_segments[-1] != parent:
            open_segments.pop()
        if parent != -1 and not open_segments:
            return False
        open_segments.append(segment)
    return True
