"""What a training actor is told at its start."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ActorSettings:
    """What an actor is told at its start. `model` is the base model folder; `checkpoints` matters to the core, and to
    whoever takes over from it."""

    cell: int
    boot_epoch: int
    model: Path
    checkpoints: Path
    objects_url: str
    keep_checkpoints: int = 3
    code_version: str = "unknown"
    combine: str = "reads"
    """How a core gets the others' gradients: ``reads`` (one-sided) or ``groups`` (`prefix_groups`)."""
    dtype: str = "float32"
    """Of parameters and computation; ``float64`` is for tests. Weights are published in fp32 either way."""
