"""A plain torch Qwen3 and the loss written out naively: the numbers everything else is compared with."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from infra.weights.architecture import Architecture
from tests.workers.cell.training.material import Sampled


def logits(arch: Architecture, w: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    """[s, vocab] of one path, in the dtype of the weights `w`; `ids` int64 [s]."""
    x = w["model.embed_tokens.weight"][ids]
    n, dim, group = len(ids), arch.head_dim, arch.heads // arch.kv_heads
    frequencies = arch.rope_theta ** (-torch.arange(0, dim, 2, dtype=x.dtype) / dim)
    angles = torch.arange(n)[:, None] * frequencies
    cos, sin = torch.cat([angles.cos()] * 2, -1)[:, None], torch.cat([angles.sin()] * 2, -1)[:, None]

    def rotate(t: Tensor) -> Tensor:
        first, second = t.chunk(2, -1)
        return t * cos + torch.cat((-second, first), -1) * sin

    for layer in range(arch.layers):
        p = f"model.layers.{layer}."
        h = rms_norm(x, (arch.hidden_size,), w[p + "input_layernorm.weight"], arch.norm_eps)
        q = (h @ w[p + "self_attn.q_proj.weight"].T).view(n, arch.heads, dim)
        k = (h @ w[p + "self_attn.k_proj.weight"].T).view(n, arch.kv_heads, dim)
        v = (h @ w[p + "self_attn.v_proj.weight"].T).view(n, arch.kv_heads, dim)
        q = rotate(rms_norm(q, (dim,), w[p + "self_attn.q_norm.weight"], arch.norm_eps))
        k = rotate(rms_norm(k, (dim,), w[p + "self_attn.k_norm.weight"], arch.norm_eps))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, -1)
        x = x + mixed @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, (arch.hidden_size,), w[p + "post_attention_layernorm.weight"], arch.norm_eps)
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (silu(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    x = rms_norm(x, (arch.hidden_size,), w["model.norm.weight"], arch.norm_eps)
    return x @ w["model.embed_tokens.weight" if arch.tied else "lm_head.weight"].T


def batch_gradient(
    arch: Architecture,
    weights: Mapping[str, Tensor],
    executions: Sequence[Sampled],
    valid: int,
    clip_low: float,
    clip_high: float,
    temperature: float = 1.0,
) -> tuple[float, dict[str, Tensor]]:
    """Loss and Hugging Face-named gradient of a whole batch, one execution after the other, token by token.

    Computes in the dtype of the weights; what a micro-step's payload holds in fp32 is rounded to that first.
    """
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    total = torch.zeros(())
    for execution in executions:
        if len(execution.ids) == execution.prompt:
            continue
        ids = torch.tensor(execution.ids)
        logp = torch.log_softmax(logits(arch, leaves, ids) / temperature, -1)
        terms = []
        for k, behaviour in enumerate(execution.behaviour):
            place = execution.prompt + k
            rho = torch.exp(logp[place - 1, ids[place]] - torch.tensor(behaviour, dtype=torch.float32))
            a = torch.tensor(execution.advantage / len(execution.behaviour), dtype=torch.float32)
            terms.append(-torch.minimum(rho * a, rho.clamp(1 - clip_low, 1 + clip_high) * a))
        total = total + torch.stack(terms).sum()
    loss = total / valid
    loss.backward()
    return loss.item(), {n: t.grad if t.grad is not None else torch.zeros_like(t) for n, t in leaves.items()}
