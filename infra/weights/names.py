"""Hugging Face names <-> Megatron-core names of a Qwen3 model, both ways, without loss.

Megatron fuses what Hugging Face keeps apart: q, k and v are interleaved per key-value group
(``[kv_heads, heads/kv_heads + 2, head_dim, hidden]``), gate and up are stacked. The mapping only moves numbers, so it
serves weights, optimizer moments and gradients alike. A pipeline stage maps what it holds; Hugging Face names always
count layers over the whole model.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from infra.weights.architecture import Architecture
from infra.weights.stages import Stage
from workflows.messages.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor


def hf_shapes(arch: Architecture, stage: Stage | None = None) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor published for `arch`, in sorted order of names; with `stage`, of what it holds.

    The last of several stages holds the embedding of a tied model as well: its projection is a copy of it.
    """
    stage = stage or Stage.whole(arch)
    hidden, dim = arch.hidden_size, arch.head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if stage.is_first or (stage.is_last and arch.tied):
        shapes["model.embed_tokens.weight"] = (arch.vocab_size, hidden)
    if stage.is_last:
        shapes["model.norm.weight"] = (hidden,)
        if not arch.tied:
            shapes["lm_head.weight"] = (arch.vocab_size, hidden)
    for layer in range(stage.first, stage.end):
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


def _renamed(arch: Architecture, stage: Stage) -> dict[str, str]:
    """Megatron name -> Hugging Face name of the tensors that are the same in both. Megatron counts layers per stage."""
    pairs: dict[str, str] = {}
    if stage.is_first:
        pairs["embedding.word_embeddings.weight"] = "model.embed_tokens.weight"
    if stage.is_last:
        pairs["decoder.final_layernorm.weight"] = "model.norm.weight"
        if not arch.tied:
            pairs["output_layer.weight"] = "lm_head.weight"
        elif not stage.is_first:
            pairs["output_layer.weight"] = "model.embed_tokens.weight"
    for layer in range(stage.first, stage.end):
        ours, theirs = _prefixes(stage, layer)
        pairs |= {
            f"{ours}input_layernorm.weight": f"{theirs}input_layernorm.weight",
            f"{ours}pre_mlp_layernorm.weight": f"{theirs}post_attention_layernorm.weight",
            f"{ours}self_attention.q_layernorm.weight": f"{theirs}self_attn.q_norm.weight",
            f"{ours}self_attention.k_layernorm.weight": f"{theirs}self_attn.k_norm.weight",
            f"{ours}self_attention.linear_proj.weight": f"{theirs}self_attn.o_proj.weight",
            f"{ours}mlp.linear_fc2.weight": f"{theirs}mlp.down_proj.weight",
        }
    return pairs


def _prefixes(stage: Stage, layer: int) -> tuple[str, str]:
    """Of layer `layer` of the whole model, as Megatron and as Hugging Face call it."""
    return f"decoder.layers.{layer - stage.first}.", f"model.layers.{layer}."


def to_hf(arch: Architecture, megatron: Mapping[str, "Tensor"], stage: Stage | None = None) -> dict[str, "Tensor"]:
    """Hugging Face tensors of a whole Megatron model or of one stage; views where the memory allows. Sorted by name.

    Raises KeyError if a Megatron tensor is missing.
    """
    stage = stage or Stage.whole(arch)
    hidden, dim, per_group = arch.hidden_size, arch.head_dim, arch.heads // arch.kv_heads
    out = {theirs: megatron[ours] for ours, theirs in _renamed(arch, stage).items()}
    for layer in range(stage.first, stage.end):
        ours, theirs = _prefixes(stage, layer)
        qkv = megatron[f"{ours}self_attention.linear_qkv.weight"].view(arch.kv_heads, per_group + 2, dim, hidden)
        out[f"{theirs}self_attn.q_proj.weight"] = qkv[:, :per_group].reshape(arch.heads * dim, hidden)
        out[f"{theirs}self_attn.k_proj.weight"] = qkv[:, per_group].reshape(arch.kv_heads * dim, hidden)
        out[f"{theirs}self_attn.v_proj.weight"] = qkv[:, per_group + 1].reshape(arch.kv_heads * dim, hidden)
        gate, up = megatron[f"{ours}mlp.linear_fc1.weight"].chunk(2)
        out[f"{theirs}mlp.gate_proj.weight"], out[f"{theirs}mlp.up_proj.weight"] = gate, up
    return dict(sorted(out.items()))


def from_hf(arch: Architecture, tensors: Mapping[str, "Tensor"], stage: Stage | None = None) -> dict[str, "Tensor"]:
    """Megatron tensors from Hugging Face ones. Raises InvalidInput on a missing, unknown or misshaped tensor.

    With `stage`, what that stage holds; `tensors` may be the whole model's.
    """
    import torch

    check_names(arch, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, stage)
    stage = stage or Stage.whole(arch)
    hidden, dim, per_group = arch.hidden_size, arch.head_dim, arch.heads // arch.kv_heads
    out = {ours: tensors[theirs] for ours, theirs in _renamed(arch, stage).items()}
    for layer in range(stage.first, stage.end):
        ours, theirs = _prefixes(stage, layer)
        q = tensors[f"{theirs}self_attn.q_proj.weight"].view(arch.kv_heads, per_group, dim, hidden)
        k = tensors[f"{theirs}self_attn.k_proj.weight"].view(arch.kv_heads, 1, dim, hidden)
        v = tensors[f"{theirs}self_attn.v_proj.weight"].view(arch.kv_heads, 1, dim, hidden)
        out[f"{ours}self_attention.linear_qkv.weight"] = torch.cat((q, k, v), dim=1).reshape(-1, hidden)
        out[f"{ours}mlp.linear_fc1.weight"] = torch.cat(
            (tensors[f"{theirs}mlp.gate_proj.weight"], tensors[f"{theirs}mlp.up_proj.weight"])
        )
    return out


def merge_stages(arch: Architecture, parts: Iterable[Mapping[str, "Tensor"]]) -> dict[str, "Tensor"]:
    """The whole model from what its stages hold, under Hugging Face names.

    Raises InvalidInput if a tensor is missing, or is held by two stages (the embedding of a tied model) and differs.
    """
    import torch

    whole: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.items():
            if name in whole and not torch.equal(whole[name], tensor.to(whole[name].device)):
                raise InvalidInput("differs between two pipeline stages", field=name)
            whole.setdefault(name, tensor)
    check_names(arch, {name: tuple(tensor.shape) for name, tensor in whole.items()})
    return dict(sorted(whole.items()))


def check_names(arch: Architecture, shapes: Mapping[str, tuple[int, ...]], stage: Stage | None = None) -> None:
    """Raises InvalidInput unless `shapes` are exactly those of `arch` (an engine accepts unknown names silently).

    With `stage`, unless they hold at least what it needs.
    """
    known = hf_shapes(arch)
    for name, shape in shapes.items():
        if name not in known:
            raise InvalidInput("is no tensor of this architecture", field=name)
        if shape != known[name]:
            raise InvalidInput(f"has shape {shape}, expected {known[name]}", field=name)
    missing = sorted(hf_shapes(arch, stage).keys() - shapes.keys())
    if missing:
        raise InvalidInput(f"is missing (and {len(missing) - 1} more)", field=missing[0])
