"""Which layers of a policy one process holds, and what they are called in the whole model."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from infra.weights.architecture import Architecture
from infra.weights.names import from_hf, hf_shapes
from workflows.messages.errors import InvalidInput

EMBEDDING, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
_LAYERS = "decoder.layers."
_NORM = "decoder.final_layernorm.weight"


@dataclass(frozen=True)
class ModelPart:
    """Layers [start, end); `is_first` embeds the tokens, `is_last` projects to the vocabulary.

    `own_head`: the vocabulary projection is a parameter of its own even where the model ties it to the embedding.
    """

    start: int
    end: int
    is_first: bool
    is_last: bool
    own_head: bool

    @classmethod
    def whole(cls, arch: Architecture, *, own_head: bool = False) -> "ModelPart":
        return cls(0, arch.layers, True, True, own_head or not arch.tied)

    @property
    def layers(self) -> int:
        return self.end - self.start

    def name_in_whole(self, name: str) -> str:
        """A parameter's name in the whole model, from its name in this part."""
        if not name.startswith(_LAYERS):
            return name
        layer, rest = name.removeprefix(_LAYERS).split(".", 1)
        return f"{_LAYERS}{int(layer) + self.start}.{rest}"

    def shapes(self, arch: Architecture) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter of this part, by its name in the whole model."""
        empty = {name: torch.empty(shape, device="meta") for name, shape in hf_shapes(arch).items()}
        whole = with_head(arch, from_hf(arch, empty))
        return {name: tuple(tensor.shape) for name, tensor in whole.items() if self._holds(name)}

    def _holds(self, name: str) -> bool:
        if name.startswith(_LAYERS):
            return self.start <= int(name.removeprefix(_LAYERS).split(".", 1)[0]) < self.end
        if name == HEAD:
            return self.is_last and self.own_head
        return self.is_first if name == EMBEDDING else self.is_last and name == _NORM


def stages_of(arch: Architecture, stages: int) -> tuple[ModelPart, ...]:
    """Layers as even as can be; the last stage, which projects to the vocabulary, never has more than another.

    Raises InvalidInput if a stage would have no layer.
    """
    if not 1 <= stages <= arch.layers:
        raise InvalidInput(f"{stages} stages cannot share {arch.layers} layers", field="stages")
    if stages == 1:
        return (ModelPart.whole(arch),)
    each, more = divmod(arch.layers, stages)
    parts: list[ModelPart] = []
    for stage in range(stages):
        start = parts[-1].end if parts else 0
        end = start + each + (stage < more)
        parts.append(ModelPart(start, end, stage == 0, stage == stages - 1, own_head=True))
    return tuple(parts)


def with_head(arch: Architecture, megatron: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Megatron-named weights that also hold the vocabulary projection under a name of its own."""
    return {**megatron, HEAD: megatron[EMBEDDING]} if arch.tied else dict(megatron)
