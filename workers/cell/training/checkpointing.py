"""What a checkpoint of the core holds, and how it gets back into the model.

model.safetensors, config.json, tokenizer ...    a Hugging Face model folder, loadable by the engine as it is
optimizer.state                                  moments under Hugging Face names (absent before the first step)
random.state                                     torch's random state, uint8

The last two are safetensors too, under names that an engine does not take for weights.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from infra.checkpoints import Checkpoint, CheckpointMeta, CheckpointStore
from infra.weights.checksum import weights_checksum
from infra.weights.folder import load_weights, save_weights
from workers.cell.training.model import PolicyModel
from workers.cell.training.optimizer import CoreOptimizer
from workflows.messages.batch_ledger import BatchLedger, LedgerEntry
from workflows.messages.errors import CheckpointUnusable
from workflows.messages.training import Combine

OPTIMIZER_FILE = "optimizer.state"
RANDOM_FILE = "random.state"


def save_checkpoint(
    store: CheckpointStore, meta: CheckpointMeta, model: PolicyModel, optimizer: CoreOptimizer, companions_from: Path
) -> Checkpoint:
    """Write the core's whole state as one durable checkpoint."""

    def fill(folder: Path) -> None:
        save_weights(folder, model.hf_weights(), companions_from)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer.state().items()}
        if state:
            save_file(state, folder / OPTIMIZER_FILE)
        save_file({"torch": torch.get_rng_state()}, folder / RANDOM_FILE)

    return store.write(meta, fill)


def ledger_of(request: Combine, version_before: int, norm: float, checksum: str) -> BatchLedger:
    """The books of the batch that `request` combines, with the gradient that came of it."""
    shares = [(0, request.boot_epoch, request.own)]
    shares += [(other.cell, other.boot_epoch, other.accumulated) for other in request.participants]
    entries = [
        LedgerEntry(micro_step=done.index, attempt=done.attempt, cell=cell, boot_epoch=boot_epoch)
        for cell, boot_epoch, share in shares
        for done in share
    ]
    return BatchLedger(
        batch=request.batch,
        version_before=version_before,
        groups=request.groups,
        micro_steps=tuple(sorted(entries, key=lambda entry: entry.micro_step)),
        valid_executions=request.valid_executions,
        gradient_norm=norm,
        gradient_checksum=checksum,
    )


def load_checkpoint(checkpoint: Checkpoint, model: PolicyModel, optimizer: CoreOptimizer | None) -> str:
    """Put a verified checkpoint into the model (and the optimizer, on the core); returns the weights checksum.

    Raises CheckpointUnusable if what was loaded is not what the checkpoint promises.
    """
    model.load_hf(load_weights(checkpoint.folder))
    checksum = weights_checksum(model.hf_weights())
    if checksum != checkpoint.meta.checksum:
        raise CheckpointUnusable(f"{checkpoint.folder.name} loads with checksum {checksum}, promised another")
    if optimizer is not None:
        path = checkpoint.folder / OPTIMIZER_FILE
        optimizer.load(checkpoint.meta.optimizer_steps, load_file(path) if path.is_file() else {})
        torch.set_rng_state(load_file(checkpoint.folder / RANDOM_FILE)["torch"])
    return checksum
