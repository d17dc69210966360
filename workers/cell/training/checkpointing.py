"""What a checkpoint of the core holds, and how it gets back into the model.

The files and their layout are `infra.checkpoints.contents`; here they meet the model, the optimizer and the generators.
Where several stages compute, the model is the whole that the first of them keeps.
"""

from pathlib import Path

import torch

from infra.checkpoints import Checkpoint, CheckpointMeta, CheckpointStore
from infra.checkpoints.contents import load_moments, load_random, write_contents
from infra.weights.checksum import weights_checksum
from infra.weights.folder import load_weights
from workers.cell.training import random_state
from workers.cell.training.optimizer import CoreOptimizer
from workers.cell.training.whole import WholePolicy
from workflows.messages.errors import CheckpointUnusable


def save_checkpoint(
    store: CheckpointStore, meta: CheckpointMeta, model: WholePolicy, optimizer: CoreOptimizer, companions_from: Path
) -> Checkpoint:
    """Write the core's whole state as one durable checkpoint."""
    weights, moments, random = model.hf_weights(), optimizer.state(), random_state.capture()
    return store.write(meta, lambda folder: write_contents(folder, weights, moments, random, companions_from))


def load_checkpoint(checkpoint: Checkpoint, model: WholePolicy, optimizer: CoreOptimizer | None) -> str:
    """Put a verified checkpoint into the model (and the optimizer, on the core); returns the weights checksum.

    Raises CheckpointUnusable if what was loaded is not what the checkpoint promises.
    """
    tensors = load_weights(checkpoint.folder)
    if (checksum := weights_checksum(tensors)) != checkpoint.meta.checksum:
        raise CheckpointUnusable(f"{checkpoint.folder.name} loads with checksum {checksum}, promised another")
    model.load_hf(tensors)
    for name, held in model.hf_weights().items():
        if not torch.equal(held.cpu(), tensors[name]):
            raise CheckpointUnusable(f"{checkpoint.folder.name}: {name} did not arrive in the model as it is stored")
    if optimizer is not None:
        optimizer.load(checkpoint.meta.optimizer_steps, load_moments(checkpoint))
        random_state.restore(load_random(checkpoint))
    return checksum
