"""A checkpoint's policy as a Hugging Face folder: what SGLang and transformers load, and where it came from."""

import json
import os
import shutil
from pathlib import Path
from typing import Literal

from infra.checkpoints.contents import BESIDE_THE_MODEL
from infra.checkpoints.durable import sync_file, sync_folder
from infra.checkpoints.manifest import Checkpoint
from infra.weights.checksum import weights_checksum
from infra.weights.folder import load_weights, save_weights
from workflows.messages.base import Message
from workflows.messages.errors import CheckpointUnusable, InvalidInput

ORIGIN_FILE = "gyre_checkpoint.json"
ExportType = Literal["float32", "bfloat16", "float16"]


class Origin(Message):
    """Which policy an exported folder holds. `checksum` is of the fp32 weights that were trained."""

    run: str
    checkpoint: str
    version: int
    checksum: str
    batch: str
    code_version: str
    dtype: ExportType


def export_model(checkpoint: Checkpoint, run: str, target: Path, dtype: ExportType = "float32") -> Origin:
    """Write the weights, config and tokenizer of a checkpoint to `target`, which must not exist; there in one step.

    Raises CheckpointUnusable if the checkpoint is damaged, InvalidInput (field FOLDER) if it cannot be written there.
    """
    import torch

    if target.exists() or target.is_symlink():
        raise InvalidInput(f"{target} exists already", field="FOLDER")
    checkpoint.verify(unread=BESIDE_THE_MODEL)
    tensors = load_weights(checkpoint.folder)
    if weights_checksum(tensors) != checkpoint.meta.checksum:
        raise CheckpointUnusable(f"{checkpoint.folder.name} holds other weights than it promises")
    origin = Origin(
        run=run,
        checkpoint=checkpoint.folder.name,
        version=checkpoint.meta.version,
        checksum=checkpoint.meta.checksum,
        batch=checkpoint.meta.batch,
        code_version=checkpoint.meta.code_version,
        dtype=dtype,
    )
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        kind: torch.dtype = getattr(torch, dtype)
        save_weights(draft, {name: one.to(kind) for name, one in tensors.items()}, checkpoint.folder)
        _set_dtype(draft / "config.json", dtype)
        (draft / ORIGIN_FILE).write_text(origin.model_dump_json(indent=2) + "\n")
        for path in draft.iterdir():
            sync_file(path)
        sync_folder(draft)
        os.rename(draft, target)
        sync_folder(target.parent)
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error.strerror or error}", field="FOLDER") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return origin


def _set_dtype(path: Path, dtype: ExportType) -> None:
    """Loaders take the config's word for the type, whatever the file holds."""
    config = json.loads(path.read_text())
    config["dtype"] = dtype
    if "torch_dtype" in config:
        config["torch_dtype"] = dtype
    path.write_text(json.dumps(config, indent=2) + "\n")
