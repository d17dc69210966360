"""The policy as Megatron-core's GPTModel: Qwen3 (RMSNorm, grouped queries with qk-norm, SwiGLU, RoPE), fp32, PP = 1.

Built from a Hugging Face `config.json` through Megatron's extension points only. Weights go in and come out under
Hugging Face names.
"""

from collections.abc import Mapping

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from infra.weights.architecture import Architecture
from infra.weights.names import from_hf, to_hf
from workers.cell.training.attention import AttentionPlan, PerTokenRotary, layer_spec
from workers.cell.training.backend import device, single_process_groups


class PolicyModel(GPTModel):
    """GPTModel with per-token positions that computes logits only for the rows somebody needs."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__(
            _config(arch),
            layer_spec(),
            vocab_size=arch.vocab_size,
            max_sequence_length=arch.max_positions,
            parallel_output=True,
            share_embeddings_and_output_weights=arch.tied,
            position_embedding_type="rope",
            rotary_base=int(arch.rope_theta),
            pg_collection=single_process_groups(),
        )
        self.arch = arch
        self.rotary_pos_emb = PerTokenRotary(arch.head_dim, arch.rope_theta)
        self._rows: Tensor | None = None
        self.output_layer.register_forward_pre_hook(self._keep_rows)

    def _keep_rows(self, _layer: torch.nn.Module, inputs: tuple) -> tuple:
        hidden = inputs[0]
        return inputs if self._rows is None else (hidden.index_select(0, self._rows), *inputs[1:])

    def logits(self, ids: Tensor, positions: Tensor, plan: AttentionPlan, rows: Tensor | None = None) -> Tensor:
        """fp32 logits [rows, vocab] of a packed sequence.

        `ids` and `positions` are int64 [s]; `rows` int64 [r] picks sequence places (all of them if None). The
        vocabulary projection is a good part of a small model's work and context tokens do not need it.
        """
        self._rows, self.rotary_pos_emb.positions = rows, positions[None]
        try:
            return self.forward(ids[None], positions[None], plan)[0]  # pyright: ignore[reportArgumentType]
        finally:
            self._rows = self.rotary_pos_emb.positions = None

    @torch.no_grad()
    def load_hf(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy Hugging Face-named weights into the parameters in place. Raises InvalidInput on a wrong set."""
        named = dict(self.named_parameters())
        for name, tensor in from_hf(self.arch, tensors).items():
            named[name].copy_(tensor)

    def hf_weights(self) -> dict[str, Tensor]:
        """The weights under Hugging Face names, sorted; detached, views where possible."""
        return to_hf(self.arch, {name: parameter.detach() for name, parameter in self.named_parameters()})


def build_model(arch: Architecture) -> PolicyModel:
    """A model with unset weights on this process's device, ready for `load_hf`."""
    return PolicyModel(arch).to(device())


def _config(arch: Architecture) -> TransformerConfig:
    return TransformerConfig(
        num_layers=arch.layers,
        hidden_size=arch.hidden_size,
        num_attention_heads=arch.heads,
        num_query_groups=arch.kv_heads,
        kv_channels=arch.head_dim,
        ffn_hidden_size=arch.ffn_size,
        normalization="RMSNorm",
        layernorm_epsilon=arch.norm_eps,
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
