"""Hugging Face names <-> Megatron-core names of a Qwen3 model, both ways, without loss.

Megatron fuses what Hugging Face keeps apart: q, k and v are interleaved per key-value group
(``[kv_heads, heads/kv_heads + 2, head_dim, hidden]``), gate and up are stacked. The mapping only moves numbers, so it
serves weights, optimizer moments and gradients alike.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from infra.weights.architecture import Architecture
from workflows.messages.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor


def hf_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor published for `arch`, in sorted order of names."""
    hidden, dim = arch.hidden_size, arch.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (arch.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not arch.tied:
        shapes["lm_head.weight"] = (arch.vocab_size, hidden)
    for layer in range(arch.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_norm.weight": (dim,),
            f"{prefix}self_attn.k_norm.weight": (dim,),
            f"{prefix}self_attn.q_proj.weight": (arch.heads * dim, hidden),
            f"{prefix}self_attn.k_proj.weight": (arch.kv_heads * dim, hidden),
            f"{prefix}self_attn.v_proj.weight": (arch.kv_heads * dim, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, arch.heads * dim),
            f"{prefix}mlp.gate_proj.weight": (arch.ffn_size, hidden),
            f"{prefix}mlp.up_proj.weight": (arch.ffn_size, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, arch.ffn_size),
        }
    return dict(sorted(shapes.items()))


def _renamed(arch: Architecture) -> dict[str, str]:
    """Megatron name -> Hugging Face name of the tensors that are the same in both."""
    pairs = {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
    }
    if not arch.tied:
        pairs["output_layer.weight"] = "lm_head.weight"
    for layer in range(arch.layers):
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        pairs |= {
            f"{ours}input_layernorm.weight": f"{theirs}input_layernorm.weight",
            f"{ours}pre_mlp_layernorm.weight": f"{theirs}post_attention_layernorm.weight",
            f"{ours}self_attention.q_layernorm.weight": f"{theirs}self_attn.q_norm.weight",
            f"{ours}self_attention.k_layernorm.weight": f"{theirs}self_attn.k_norm.weight",
            f"{ours}self_attention.linear_proj.weight": f"{theirs}self_attn.o_proj.weight",
            f"{ours}mlp.linear_fc2.weight": f"{theirs}mlp.down_proj.weight",
        }
    return pairs


def to_hf(arch: Architecture, megatron: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Hugging Face tensors of a whole (unsplit) Megatron model; views where the memory allows. Sorted by name.

    Raises KeyError if a Megatron tensor is missing.
    """
    hidden, dim, per_group = arch.hidden_size, arch.head_dim, arch.heads // arch.kv_heads
    out = {theirs: megatron[ours] for ours, theirs in _renamed(arch).items()}
    for layer in range(arch.layers):
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        qkv = megatron[f"{ours}self_attention.linear_qkv.weight"].view(arch.kv_heads, per_group + 2, dim, hidden)
        out[f"{theirs}self_attn.q_proj.weight"] = qkv[:, :per_group].reshape(arch.heads * dim, hidden)
        out[f"{theirs}self_attn.k_proj.weight"] = qkv[:, per_group].reshape(arch.kv_heads * dim, hidden)
        out[f"{theirs}self_attn.v_proj.weight"] = qkv[:, per_group + 1].reshape(arch.kv_heads * dim, hidden)
        gate, up = megatron[f"{ours}mlp.linear_fc1.weight"].chunk(2)
        out[f"{theirs}mlp.gate_proj.weight"], out[f"{theirs}mlp.up_proj.weight"] = gate, up
    return dict(sorted(out.items()))


def from_hf(arch: Architecture, tensors: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Megatron tensors from Hugging Face ones. Raises InvalidInput on a missing, unknown or misshaped tensor."""
    import torch

    check_names(arch, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    hidden, dim, per_group = arch.hidden_size, arch.head_dim, arch.heads // arch.kv_heads
    out = {ours: tensors[theirs] for ours, theirs in _renamed(arch).items()}
    for layer in range(arch.layers):
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        q = tensors[f"{theirs}self_attn.q_proj.weight"].view(arch.kv_heads, per_group, dim, hidden)
        k = tensors[f"{theirs}self_attn.k_proj.weight"].view(arch.kv_heads, 1, dim, hidden)
        v = tensors[f"{theirs}self_attn.v_proj.weight"].view(arch.kv_heads, 1, dim, hidden)
        out[f"{ours}self_attention.linear_qkv.weight"] = torch.cat((q, k, v), dim=1).reshape(-1, hidden)
        out[f"{ours}mlp.linear_fc1.weight"] = torch.cat(
            (tensors[f"{theirs}mlp.gate_proj.weight"], tensors[f"{theirs}mlp.up_proj.weight"])
        )
    return out


def check_names(arch: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises InvalidInput unless `shapes` are exactly those of `arch` (an engine accepts unknown names silently)."""
    wanted = hf_shapes(arch)
    for name, shape in shapes.items():
        if name not in wanted:
            raise InvalidInput("is no tensor of this architecture", field=name)
        if shape != wanted[name]:
            raise InvalidInput(f"has shape {shape}, expected {wanted[name]}", field=name)
    missing = sorted(wanted.keys() - shapes.keys())
    if missing:
        raise InvalidInput(f"is missing (and {len(missing) - 1} more)", field=missing[0])
