"""A tiny random model of the Qwen3 architecture, in fp32, as Hugging Face files; two layers, 512 ids, no tokenizer."""

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 512
END_OF_TEXT = 2


def write_tiny_model(folder: Path, seed: int = 0, tie_word_embeddings: bool = True) -> dict[str, torch.Tensor]:
    """Write config and weights of `seed`; returns the weights under their Hugging Face names."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=0,
        eos_token_id=END_OF_TEXT,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
