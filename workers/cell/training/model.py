"""The policy as Megatron-core's GPTModel: Qwen3 (RMSNorm, grouped queries with qk-norm, SwiGLU, RoPE), fp32.

Built from a Hugging Face `config.json` through Megatron's extension points only. Weights go in and come out under
Hugging Face names. One object holds the whole model, or the layers of one pipeline stage.
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
from workers.cell.training.parts import EMBEDDING, HEAD, ModelPart
from workers.cell.training.step_tensors import StepTensors


class PolicyModel(GPTModel):
    """GPTModel with per-token positions that computes logits only for the rows somebody needs.

    `part`: the layers it holds, all of them unless given. A stage is a GPTModel of its own with that many layers, so
    Megatron sees no pipeline at build time; `pipeline` moves what goes from stage to stage. `dtype` is that of the
    parameters and of the computation: fp64 is for tests.
    """

    def __init__(self, arch: Architecture, part: ModelPart | None = None, dtype: torch.dtype = torch.float32) -> None:
        part = part or ModelPart.whole(arch)
        super().__init__(
            _config(arch, part.layers, dtype),
            layer_spec(),
            vocab_size=arch.vocab_size,
            max_sequence_length=arch.max_positions,
            pre_process=part.is_first,
            post_process=part.is_last,
            parallel_output=True,
            share_embeddings_and_output_weights=not part.own_head,
            position_embedding_type="rope",
            rotary_base=int(arch.rope_theta),
            pg_collection=single_process_groups(),
        )
        self.arch, self.part, self.dtype = arch, part, dtype
        self.rotary_pos_emb = PerTokenRotary(arch.head_dim, arch.rope_theta, dtype)
        self._rows: Tensor | None = None
        if part.is_last:
            self.output_layer.register_forward_pre_hook(self._keep_rows)

    def _keep_rows(self, _layer: torch.nn.Module, inputs: tuple) -> tuple:
        hidden = inputs[0]
        return inputs if self._rows is None else (hidden.index_select(0, self._rows), *inputs[1:])

    def logits(self, ids: Tensor, positions: Tensor, plan: AttentionPlan, rows: Tensor | None = None) -> Tensor:
        """Logits [rows, vocab] of a packed sequence; of a whole model, or the last stage of one.

        `ids` and `positions` are int64 [s]; `rows` int64 [r] picks sequence places (all of them if None). The
        vocabulary projection is a good part of a small model's work and context tokens do not need it.
        """
        return self._output(ids, positions, plan, rows)[0]

    def stage_output(self, step: StepTensors) -> Tensor:
        """What this stage makes of a micro-step: logits [r, vocab] of the targets from the last stage, hidden states
        [s, 1, hidden] from any other. Those of the stage before are given with `set_input_tensor`."""
        output = self._output(step.ids, step.positions, step.plan, step.rows)
        return output[0] if self.part.is_last else output

    def _output(self, ids: Tensor, positions: Tensor, plan: AttentionPlan, rows: Tensor | None) -> Tensor:
        self._rows, self.rotary_pos_emb.positions = rows, positions[None]
        try:
            return self.forward(ids[None], positions[None], plan)  # pyright: ignore[reportArgumentType]
        finally:
            self._rows = self.rotary_pos_emb.positions = None

    def named_in_whole(self) -> dict[str, torch.nn.Parameter]:
        """The parameters by their names in the whole model."""
        return {self.part.name_in_whole(name): parameter for name, parameter in self.named_parameters()}

    @torch.no_grad()
    def load_hf(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the whole model's Hugging Face-named weights, or a stage's own of them, into the parameters in place.

        Raises InvalidInput on a wrong set.
        """
        whole = from_hf(self.arch, tensors)
        for name, parameter in self.named_in_whole().items():
            parameter.copy_(whole[EMBEDDING if name == HEAD and HEAD not in whole else name])

    def hf_weights(self) -> dict[str, Tensor]:
        """The whole model's weights under Hugging Face names, sorted; detached, fp32, views where possible."""
        named = to_hf(self.arch, {name: parameter.detach() for name, parameter in self.named_parameters()})
        return {name: tensor.to(torch.float32) for name, tensor in named.items()}


def build_model(arch: Architecture, part: ModelPart | None = None, dtype: torch.dtype = torch.float32) -> PolicyModel:
    """A model with unset weights on this process's device, ready for `load_hf`."""
    return PolicyModel(arch, part, dtype).to(device(), dtype)


def _config(arch: Architecture, layers: int, dtype: torch.dtype) -> TransformerConfig:
    return TransformerConfig(
        num_layers=layers,
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
        params_dtype=dtype,
        pipeline_dtype=dtype,
        calculate_per_token_loss=True,  # micro-steps sum: Megatron's steps must not divide by their number
        batch_p2p_comm=False,
        use_cpu_initialization=True,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
