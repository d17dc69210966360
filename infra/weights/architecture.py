"""The shape of a policy, read from a Hugging Face `config.json`.

Only the Qwen3 dense architecture is understood; anything the training model would compute differently is refused
with the field named, never trained silently wrong.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflows.messages.errors import InvalidInput


@dataclass(frozen=True)
class Architecture:
    """Sizes of one Qwen3 model; `head_dim` is per head and need not be hidden_size / heads."""

    vocab_size: int
    hidden_size: int
    ffn_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    tied: bool
    max_positions: int

    @classmethod
    def from_folder(cls, folder: Path) -> "Architecture":
        """Read `folder`/config.json. Raises InvalidInput, naming the field that cannot be used."""
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{path} cannot be read: {error}", field="config.json") from error
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Architecture":
        """From the parsed config; transformers 4 and 5 spell the rotary settings differently."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        for field, is_right in (
            ("model_type", config.get("model_type") == "qwen3"),
            ("hidden_act", config.get("hidden_act", "silu") == "silu"),
            ("attention_bias", not config.get("attention_bias", False)),
            ("use_sliding_window", not config.get("use_sliding_window", False)),
            ("rope_parameters", rope.get("rope_type", "default") == "default"),
        ):
            if not is_right:
                raise InvalidInput(f"{config.get(field)!r} is not supported by the training model", field=field)
        try:
            return cls(
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                ffn_size=config["intermediate_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                kv_heads=config["num_key_value_heads"],
                head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
                rope_theta=float(rope.get("rope_theta") or config["rope_theta"]),
                norm_eps=float(config["rms_norm_eps"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                max_positions=config["max_position_embeddings"],
            )
        except KeyError as error:
            raise InvalidInput("is missing", field=str(error.args[0])) from error

    @property
    def parameters(self) -> int:
        """Trainable parameters, shared ones counted once."""
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads) + 2 * self.head_dim
        layer = attention + 3 * self.hidden_size * self.ffn_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden_size
