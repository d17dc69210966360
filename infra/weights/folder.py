"""Model folders in the Hugging Face layout: what SGLang loads and what a checkpoint holds."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.weights.architecture import Architecture
from infra.weights.checksum import weights_checksum
from infra.weights.names import check_names
from workflows.messages.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_FILE = "model.safetensors"
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""What besides the weights makes a folder loadable; copied when present."""


def require_model(folder: Path) -> None:
    """A look at what lies in `folder`, nothing is loaded. Raises InvalidInput when it is no model to start from."""
    if not folder.is_dir():
        raise InvalidInput(
            f"{folder} is no folder; it has to be a local folder in the Hugging Face layout (names are not downloaded)",
            field="model",
        )
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    missing += [] if any(folder.glob("model*.safetensors")) else ["model*.safetensors (the weights)"]
    if missing:
        raise InvalidInput(f"{folder} is no model folder: {', '.join(missing)} missing", field="model")


def load_weights(folder: Path) -> dict[str, "Tensor"]:
    """The fp32 tensors of `folder`, checked against its config. A copy of tied embeddings is dropped.

    Raises InvalidInput if there are none, or they are not those of the architecture.
    """
    import torch
    from safetensors.torch import load_file

    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InvalidInput(f"{folder} holds no model*.safetensors", field="model")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= load_file(file)
    arch = Architecture.from_folder(folder)
    if arch.tied:
        tensors.pop("lm_head.weight", None)
    check_names(arch, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def folder_checksum(folder: Path) -> str:
    """The weights checksum of what `folder` holds (in fp32)."""
    return weights_checksum(load_weights(folder))


def save_weights(folder: Path, tensors: Mapping[str, "Tensor"], companions_from: Path) -> None:
    """Fill the existing `folder`: weights under Hugging Face names, config and tokenizer of `companions_from`."""
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    copy_companions(folder, companions_from)


def copy_companions(folder: Path, source: Path) -> None:
    """Config and tokenizer of `source` into the existing `folder`."""
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def export_folder(
    target: Path,
    tensors: Mapping[str, Any],
    companions_from: Path,
    save: Callable[[Path, Mapping[str, Any], Path], None] = save_weights,
) -> None:
    """Write a model folder with `save` and rename it to `target` in one step; an older one is replaced.

    A reader sees the old folder, none for an instant, or the new one, never a half-written one. At its peak that takes
    the room of two versions; a save that fails leaves only the old one.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        save(draft, tensors, companions_from)
        if target.exists():
            shutil.rmtree(target)
        os.rename(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
