"""Attention over a tree of segments, each token over exactly its ancestors and itself: nothing is masked away.

Segments lie in depth-first order, so all that descends from a segment follows it without a gap. Two kinds of dense
blocks therefore cover the whole tree, each a pair of contiguous slices: a segment over itself (causal), and a segment's
descendants over the segment (full). Every block is one call of torch's flash kernel; blocks of one row are merged by
their log-sum-exps, and the backward pass gives each block the merged output and log-sum-exp, from which the kernel
recomputes that block's share of the softmax (Dao et al., FlashAttention-2, and Liu et al., Ring Attention).

On CUDA the same tree is a FlexAttention block mask: a row sees a column iff the column is not behind it and the row
lies inside the column's subtree.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Block:
    """Rows [row, row_end) attend to columns [column, column_end); `causal` blocks are square."""

    row: int
    row_end: int
    column: int
    column_end: int
    causal: bool

    @property
    def pairs(self) -> int:
        """(row, column) pairs that are computed and count."""
        rows, columns = self.row_end - self.row, self.column_end - self.column
        return rows * (rows + 1) // 2 if self.causal else rows * columns


def blocks_of(offsets: Sequence[int], parents: Sequence[int]) -> tuple[Block, ...]:
    """The dense blocks of a tree, causal ones first; they cover every (token, ancestor) pair once.

    `offsets` [g+1] and `parents` [g] as in `infra.micro_steps`. A chain of only children is one segment here.
    """
    starts, ends, above = _without_chains(offsets, parents)
    subtree_ends = subtree_ends_of(ends, above)
    own = [Block(start, end, start, end, True) for start, end in zip(starts, ends, strict=True)]
    below = [
        Block(end, last, start, end, False)
        for start, end, last in zip(starts, ends, subtree_ends, strict=True)
        if last > end
    ]
    return (*own, *below)


def subtree_ends_of(ends: Sequence[int], parents: Sequence[int]) -> list[int]:
    """For each segment, the end of the last one that descends from it (its own end for a leaf)."""
    last = list(ends)
    for segment in range(len(parents) - 1, -1, -1):
        if parents[segment] >= 0:
            last[parents[segment]] = max(last[parents[segment]], last[segment])
    return last


def _without_chains(offsets: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    children = [0] * len(parents)
    for parent in parents:
        if parent >= 0:
            children[parent] += 1
    starts: list[int] = []
    ends: list[int] = []
    above: list[int] = []
    new_index: list[int] = []
    for segment, parent in enumerate(parents):
        if parent >= 0 and parent == segment - 1 and children[parent] == 1:
            ends[-1] = int(offsets[segment + 1])
        else:
            starts.append(int(offsets[segment]))
            ends.append(int(offsets[segment + 1]))
            above.append(new_index[parent] if parent >= 0 else -1)
        new_index.append(len(starts) - 1)
    return starts, ends, above


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: tuple[Block, ...], scale: float | None) -> Tensor:
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:3])
        for block in blocks:
            rows, columns = slice(block.row, block.row_end), slice(block.column, block.column_end)
            part, part_lse = _flash(
                q[:, :, rows], k[:, :, columns], v[:, :, columns], 0.0, block.causal, attn_mask=None, scale=scale
            )
            if block.causal:
                out[:, :, rows], lse[:, :, rows] = part, part_lse
                continue
            before = lse[:, :, rows]
            merged = torch.logaddexp(before, part_lse)
            kept = out[:, :, rows].mul_((before - merged).exp_()[..., None])
            kept.addcmul_(part, (part_lse - merged).exp_()[..., None])
            lse[:, :, rows] = merged
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.blocks, ctx.scale = blocks, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grad_out = grads[0]
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for block in ctx.blocks:
            rows, columns = slice(block.row, block.row_end), slice(block.column, block.column_end)
            dq, dk, dv = _flash_backward(
                grad_out[:, :, rows],
                q[:, :, rows],
                k[:, :, columns],
                v[:, :, columns],
                out[:, :, rows],
                lse[:, :, rows],
                0.0,
                block.causal,
                attn_mask=None,
                scale=ctx.scale,
            )
            grad_q[:, :, rows] += dq
            grad_k[:, :, columns] += dk
            grad_v[:, :, columns] += dv
        return grad_q, grad_k, grad_v, None, None


def tree_attention(q: Tensor, k: Tensor, v: Tensor, blocks: tuple[Block, ...], scale: float | None = None) -> Tensor:
    """Attention output [b, heads, s, dim] on a CPU.

    `q` [b, heads, s, dim]; `k`, `v` [b, kv_heads, s, dim], heads a multiple of kv_heads; fp32 or fp64. `blocks` as
    `blocks_of` makes them. Work and memory are linear in `Block.pairs`; no [s, s] matrix is ever made.
    """
    return _TreeAttention.apply(q, k, v, blocks, scale)  # pyright: ignore[reportReturnType]


def visible(row: Tensor, column: Tensor, subtree_end: Tensor) -> Tensor:
    """Whether `row` may attend to `column` (int64, broadcast); `subtree_end` [s]: of each place's segment.

    This is FlexAttention's mask function, and what the blocks amount to.
    """
    return (column <= row) & (row < subtree_end[column])


def subtree_end_by_place(offsets: Sequence[int], parents: Sequence[int]) -> Tensor:
    """int64 [s]: where the subtree of each place's segment ends."""
    last = subtree_ends_of(list(offsets[1:]), parents)
    sizes = [end - start for start, end in itertools.pairwise(offsets)]
    return torch.repeat_interleave(torch.tensor(last), torch.tensor(sizes))


def block_mask_of(offsets: Sequence[int], parents: Sequence[int], device: torch.device) -> BlockMask:
    """The tree as a FlexAttention block mask."""
    ends = subtree_end_by_place(offsets, parents).to(device)

    def see(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return visible(row, column, ends)

    return create_block_mask(see, None, None, len(ends), len(ends), device=device)


def flex_tree_attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float | None = None) -> Tensor:
    """`tree_attention` for CUDA. FlexAttention's backward is not implemented on a CPU; its forward is."""
    run = torch.compile(flex_attention) if q.is_cuda else flex_attention
    return run(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])  # pyright: ignore[reportReturnType]
