"""What a training actor is told at its start."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ActorSettings:
    """What an actor is told at its start. `model` is the base model folder; `checkpoints` matters to the core only."""

    cell: int
    boot_epoch: int
    model: Path
    checkpoints: Path
    objects_url: str
    keep_checkpoints: int = 3
    code_version: str = "unknown"
