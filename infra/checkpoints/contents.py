"""What the files of a checkpoint hold: one layout by full parameter name, whatever pipeline layout wrote it.

    model.safetensors, config.json, tokenizer ...    a Hugging Face model folder, loadable by an engine as it is
    optimizer.state                                  ``exp_avg/<name>``, ``exp_avg_sq/<name>`` for the name of every
                                                     weight, fp32, shaped as it (absent before the first step)
    random.state                                     states of the random generators

The last two are safetensors too, under names that an engine does not take for weights. Names are Hugging Face's and
count layers over the whole model, so a set that one stage wrote loads into two and back: the layout is the reader's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from infra.checkpoints.manifest import Checkpoint, Damage
from infra.weights.architecture import Architecture
from infra.weights.checksum import weights_checksum
from infra.weights.folder import WEIGHTS_FILE, load_weights, save_weights
from infra.weights.names import hf_shapes
from workflows.messages.errors import CheckpointUnusable, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

OPTIMIZER_FILE, RANDOM_FILE = "optimizer.state", "random.state"
BESIDE_THE_MODEL = frozenset({OPTIMIZER_FILE, RANDOM_FILE})
"""What nobody reads who only loads the model: an engine, an export."""
MOMENTS = ("exp_avg", "exp_avg_sq")


def write_contents(
    folder: Path,
    weights: Mapping[str, "Tensor"],
    moments: Mapping[str, "Tensor"],
    random: Mapping[str, "Tensor"],
    companions_from: Path,
) -> None:
    """Fill `folder` with a whole model's state; config and tokenizer come from `companions_from`."""
    from safetensors.torch import save_file

    save_weights(folder, weights, companions_from)
    if moments:
        save_file({name: one.detach().cpu().contiguous() for name, one in moments.items()}, folder / OPTIMIZER_FILE)
    save_file({name: one.contiguous() for name, one in random.items()}, folder / RANDOM_FILE)


def load_moments(checkpoint: Checkpoint) -> dict[str, "Tensor"]:
    """The whole model's moments; empty before the first step. Raises CheckpointUnusable if the file is missing."""
    return _load(checkpoint, OPTIMIZER_FILE) if checkpoint.meta.optimizer_steps else {}


def load_random(checkpoint: Checkpoint) -> dict[str, "Tensor"]:
    """States of the random generators. Raises CheckpointUnusable if the file is missing."""
    return _load(checkpoint, RANDOM_FILE)


def contents_damage(checkpoint: Checkpoint) -> tuple[Damage, ...]:
    """What in the files does not agree with the manifest, though the bytes are those that were written."""
    found: list[Damage] = []
    try:
        arch = Architecture.from_folder(checkpoint.folder)
        if weights_checksum(load_weights(checkpoint.folder)) != checkpoint.meta.checksum:
            found.append(Damage(file=WEIGHTS_FILE, fault="has another weights checksum than the manifest says"))
    except InvalidInput as error:
        return (Damage(file=WEIGHTS_FILE, fault=f"cannot be loaded: {error}"),)
    if checkpoint.meta.trainer == "paced":
        return tuple(found)
    try:
        moments = load_moments(checkpoint)
        wanted = {f"{moment}/{name}": shape for moment in MOMENTS for name, shape in hf_shapes(arch).items()}
        if moments and {name: tuple(tensor.shape) for name, tensor in moments.items()} != wanted:
            found.append(Damage(file=OPTIMIZER_FILE, fault="is not the state of this architecture"))
    except CheckpointUnusable:
        found.append(Damage(file=OPTIMIZER_FILE, fault=f"is missing after {checkpoint.meta.optimizer_steps} steps"))
    if RANDOM_FILE not in checkpoint.files:
        found.append(Damage(file=RANDOM_FILE, fault="is missing"))
    return tuple(found)


def _load(checkpoint: Checkpoint, name: str) -> dict[str, "Tensor"]:
    from safetensors.torch import load_file

    if name not in checkpoint.files:
        raise CheckpointUnusable(f"{checkpoint.folder.name} holds no {name}")
    return load_file(checkpoint.folder / name)
