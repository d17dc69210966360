"""How a model is divided into pipeline stages. What lies on disk does not know: names are those of the whole model."""

from dataclasses import dataclass

from infra.weights.architecture import Architecture
from workflows.messages.errors import InvalidInput


@dataclass(frozen=True)
class Stage:
    """Layers `first` to `end` (exclusive) of `layers`; the first stage embeds, the last one normalises and projects."""

    first: int
    end: int
    layers: int

    @classmethod
    def whole(cls, arch: Architecture) -> "Stage":
        """The only stage of a model that is not divided."""
        return cls(0, arch.layers, arch.layers)

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.end == self.layers


def pipeline_stages(arch: Architecture, count: int) -> tuple[Stage, ...]:
    """`count` stages of equally many layers, in order. Raises InvalidInput if the layers cannot be so divided."""
    if count < 1 or arch.layers % count:
        raise InvalidInput(f"{arch.layers} layers cannot be divided among {count} stages", field="pipeline_stages")
    each = arch.layers // count
    return tuple(Stage(rank * each, (rank + 1) * each, arch.layers) for rank in range(count))
