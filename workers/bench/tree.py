"""Forward and backward of a tree against its paths one by one: time, memory, and what operations alone would allow.

The bound is the operations of the flat layout over those of the tree: matrix products of every token, the vocabulary
product of every target, attention over exact (token, ancestor) pairs. The backward pass doubles each, so that factor
cancels. Both layouts run in turn in one process, on one model and one loss; the flat paths come in micro-steps of at
most the tree's own length, as the packer would cut them.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from infra.micro_steps import MicroStepHeader, PackedMicroStep, PackedPath, TargetSpan
from infra.weights.architecture import Architecture
from workers.cell.training.loss import LossSettings
from workers.cell.training.model import PolicyModel
from workers.cell.training.stream import SingleStageStream
from workers.cell.training.tree_attention import blocks_of

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28)


@dataclass(frozen=True)
class Shape:
    """A shared prefix of `prefix` tokens and `leaves` answers of `answer` tokens, all of them targets."""

    prefix: int
    leaves: int
    answer: int

    @classmethod
    def of(cls, sharing: int, tokens: int) -> "Shape":
        """About `tokens` places as a tree, `sharing` times as many as paths; twice as many leaves as `sharing`."""
        leaves = 2 * sharing
        prefix = round(tokens * (sharing - 1) / (leaves - 1))
        return cls(prefix, leaves, (tokens - prefix) // leaves)

    @property
    def tree_tokens(self) -> int:
        return self.prefix + self.leaves * self.answer

    @property
    def flat_tokens(self) -> int:
        return self.leaves * (self.prefix + self.answer)


def operations(arch: Architecture, tokens: int, targets: int, pairs: int) -> int:
    """Multiply-adds of one forward pass."""
    width = arch.head_dim * (2 * arch.heads + 2 * arch.kv_heads)
    per_token = arch.layers * arch.hidden_size * (width + 3 * arch.ffn_size)
    return tokens * per_token + targets * arch.hidden_size * arch.vocab_size + 2 * pairs * arch.layers * _width(arch)


def _width(arch: Architecture) -> int:
    return arch.heads * arch.head_dim


def bound(arch: Architecture, shape: Shape) -> float:
    """Operations of the flat layout over those of the tree."""
    tree, flat = as_tree(shape, 0), as_paths(shape, 0, shape.tree_tokens)
    pairs = [sum(_pairs(step) for step in steps) for steps in ([tree], flat)]
    targets = shape.leaves * shape.answer
    return operations(arch, shape.flat_tokens, targets, pairs[1]) / operations(
        arch, shape.tree_tokens, targets, pairs[0]
    )


def _pairs(step: PackedMicroStep) -> int:
    return sum(block.pairs for block in blocks_of(step.segment_offsets.tolist(), step.segment_parents.tolist()))


def as_tree(shape: Shape, seed: int, vocabulary: int = 256) -> PackedMicroStep:
    """The whole shape as one micro-step."""
    sizes = [shape.prefix] + [shape.answer] * shape.leaves
    parents = [-1] + [0] * shape.leaves
    positions = [np.arange(shape.prefix)] + [shape.prefix + np.arange(shape.answer)] * shape.leaves
    return _step("tree", _ids(shape, seed, vocabulary), sizes, parents, positions, shape, list(range(1, len(sizes))))


def as_paths(shape: Shape, seed: int, budget: int, vocabulary: int = 256) -> list[PackedMicroStep]:
    """The same tokens as whole paths, as many to a micro-step as fit `budget`, at least one."""
    tokens = _ids(shape, seed, vocabulary)
    length = shape.prefix + shape.answer
    paths = [
        np.concatenate([tokens[: shape.prefix], tokens[shape.prefix + leaf * shape.answer :][: shape.answer]])
        for leaf in range(shape.leaves)
    ]
    many = max(1, budget // length)
    steps: list[PackedMicroStep] = []
    for start in range(0, len(paths), many):
        chosen = paths[start : start + many]
        positions = [np.arange(length)] * len(chosen)
        sizes, parents = [length] * len(chosen), [-1] * len(chosen)
        ids = np.concatenate(chosen)
        steps.append(_step("flat", ids, sizes, parents, positions, shape, list(range(len(chosen)))))
    return steps


def _ids(shape: Shape, seed: int, vocabulary: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, shape.tree_tokens).astype(np.int32)


def _step(
    layout: Any,
    ids: np.ndarray,
    sizes: Sequence[int],
    parents: Sequence[int],
    positions: Sequence[np.ndarray],
    shape: Shape,
    ends: Sequence[int],
) -> PackedMicroStep:
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    targets = np.zeros(len(ids), bool)
    total = shape.leaves * shape.answer
    paths = []
    for number, segment in enumerate(ends):
        end = int(edges[segment + 1])
        span = TargetSpan(call=f"c{number}", offset=0, start=end - shape.answer, end=end)
        targets[span.start : span.end] = True
        leaf = PackedPath(
            execution="e", leaf=f"c{number}", segment=segment, advantage=1.0, target_total=total, spans=(span,)
        )
        paths.append(leaf)
    return PackedMicroStep(
        header=MicroStepHeader(batch="bench", index=0, group="g", layout=layout, temperature=1.0, paths=tuple(paths)),
        ids=ids,
        positions=np.concatenate(positions).astype(np.int32),
        segment_offsets=edges,
        segment_parents=np.array(parents, np.int32),
        targets=targets,
        weights=np.where(targets, np.float32(1 / total), 0).astype(np.float32),
        behaviour_logprobs=np.where(targets, np.float32(-5.5), 0).astype(np.float32),
        versions=np.where(targets, 0, -1).astype(np.int64),
    )


def saved_bytes(model: PolicyModel, step: PackedMicroStep) -> int:
    """Bytes a forward pass keeps for its backward pass; parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        SingleStageStream(model).run(step, SETTINGS)
    return sum(kept.values())


def seconds(model: PolicyModel, steps: Sequence[PackedMicroStep]) -> float:
    """Forward and backward of all steps."""
    stream = SingleStageStream(model)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    for step in steps:
        stream.run(step, SETTINGS)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(model: PolicyModel, sharing: int, tokens: int, rounds: int, row_seconds: float) -> dict[str, Any]:
    """One row of the report; tree and paths alternate, the median of the rounds' ratios counts.

    After `row_seconds` no further round begins. What all paths keep in one micro-step is the sum over their
    micro-steps, each shape measured once: it is linear in paths, and at 131,072 tokens no small machine holds it.
    """
    shape = Shape.of(sharing, tokens)
    vocabulary = min(256, model.arch.vocab_size)
    tree, flat = [as_tree(shape, 0, vocabulary)], as_paths(shape, 0, shape.tree_tokens, vocabulary)
    tree_bytes = saved_bytes(model, tree[0])
    by_size = {step.tokens: step for step in flat}
    flat_bytes = {size: saved_bytes(model, step) for size, step in by_size.items()}
    started, times = time.monotonic(), list[tuple[float, float]]()
    while len(times) < rounds and (not times or time.monotonic() - started < row_seconds):
        times.append((seconds(model, tree), seconds(model, flat)))
    speedup, limit = statistics.median(paths / one for one, paths in times), bound(model.arch, shape)
    return {
        "sharing": round(shape.flat_tokens / shape.tree_tokens, 2),
        "tokens": shape.tree_tokens,
        "flat_tokens": shape.flat_tokens,
        "rounds": len(times),
        "tree_seconds": round(statistics.median(one for one, _ in times), 3),
        "flat_seconds": round(statistics.median(paths for _, paths in times), 3),
        "speedup": round(speedup, 3),
        "flop_bound": round(limit, 3),
        "speedup_over_bound": round(speedup / limit, 3),
        "saved_bytes": tree_bytes,
        "flat_saved_bytes_largest_micro_step": max(flat_bytes.values()),
        "flat_saved_bytes_in_one_micro_step": sum(flat_bytes[step.tokens] for step in flat),
    }
