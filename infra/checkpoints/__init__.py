"""Checkpoints of the core as folders on disk: complete or not there at all. Importing this does not import torch."""

from infra.checkpoints.manifest import Checkpoint, CheckpointMeta, Damage
from infra.checkpoints.store import CheckpointStore

__all__ = ["Checkpoint", "CheckpointMeta", "CheckpointStore", "Damage"]
