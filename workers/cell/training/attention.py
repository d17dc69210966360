"""Core attention handed to Megatron through its layer spec, and the plan that says who may attend to whom.

A sequence holds segments back to back (infra.micro_steps): whole paths, or the nodes of a tree whose tokens attend to
their ancestors. The plan travels through GPTModel in the place of the attention mask, untouched.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.cell.training.tree_attention import Block, block_mask_of, blocks_of, flex_tree_attention, tree_attention


@dataclass(frozen=True)
class AttentionPlan:
    """`spans`: [start, end) of each causal block, covering the sequence in order. `blocks`, if given, rule instead: a
    tree's (`tree_attention`), with its block mask on CUDA. `mask` rules over both: bool [s, s], True where a row may
    attend to a column."""

    spans: tuple[tuple[int, int], ...] = ()
    blocks: tuple[Block, ...] = ()
    block_mask: object | None = None
    mask: Tensor | None = None

    @classmethod
    def of_segments(cls, offsets: Sequence[int], parents: Sequence[int], device: torch.device) -> "AttentionPlan":
        """The plan of segments as `infra.micro_steps` lays them out: [g+1] edges and [g] parents."""
        spans = tuple(itertools.pairwise(offsets))
        if all(parent < 0 for parent in parents):
            return cls(spans=spans)
        if device.type == "cuda":
            return cls(spans=spans, block_mask=block_mask_of(offsets, parents, device))
        return cls(spans=spans, blocks=blocks_of(offsets, parents))


class PackedAttention(MegatronModule):
    """Scaled dot-product attention over segments; every kernel call is dense, so no work is masked away."""

    def __init__(self, config, layer_number, *args, softmax_scale: float | None = None, **kwargs) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: AttentionPlan, *args, **kwargs
    ) -> Tensor:
        """`query` [s, b, heads, dim], `key` and `value` [s, b, kv_heads, dim] -> [s, b, heads * dim]."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if attention_mask.mask is not None:
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=attention_mask.mask, scale=self.scale, enable_gqa=True
            )
        elif attention_mask.block_mask is not None:
            out = flex_tree_attention(q, k, v, attention_mask.block_mask, self.scale)
        elif attention_mask.blocks:
            out = tree_attention(q, k, v, attention_mask.blocks, self.scale)
        else:
            out = torch.cat([self._causal(q, k, v, start, end) for start, end in attention_mask.spans], dim=2)
        return out.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, start: int, end: int) -> Tensor:
        part = slice(start, end)
        return scaled_dot_product_attention(
            q[:, :, part], k[:, :, part], v[:, :, part], is_causal=True, scale=self.scale, enable_gqa=True
        )

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None) -> dict:
        return {}


def layer_spec() -> ModuleSpec:
    """Megatron's local layer with qk-norm, its core attention replaced by ours."""
    spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    attention = spec.submodules.self_attention  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    attention.submodules.core_attention = PackedAttention
    return spec


class PerTokenRotary(torch.nn.Module):
    """Rotary angles for explicit positions; the stock module only counts upwards.

    `positions` [b, s] is set before each forward; returns angles [s, b, 1, head_dim] in `dtype`.
    """

    def __init__(self, head_dim: int, theta: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.positions: Tensor | None = None
        self.inverse_frequencies: Tensor
        exponents = torch.arange(0, head_dim, 2, dtype=dtype) / head_dim
        self.register_buffer("inverse_frequencies", 1.0 / (theta**exponents), persistent=False)

    def get_rotary_seq_len(self, *args, **kwargs) -> int:
        """Not used: angles follow from the positions."""
        return 0

    def forward(self, *args, **kwargs) -> Tensor:
        if self.positions is None:
            raise RuntimeError("positions must be set before the forward pass")
        angles = self.positions.t().to(self.inverse_frequencies.dtype)[..., None] * self.inverse_frequencies
        return torch.cat((angles, angles), dim=-1)[:, :, None]
