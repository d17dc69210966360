"""Model folders read and written as numpy arrays: what a process without torch does with weights.

Names, bytes and checksum are those of `infra.weights.folder` and `infra.weights.checksum`; fp32 only.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from infra.weights.architecture import Architecture
from infra.weights.checksum import WeightsDigest
from infra.weights.folder import WEIGHTS_FILE, copy_companions
from infra.weights.names import check_names
from workflows.messages.errors import InvalidInput

Arrays = dict[str, np.ndarray]


def load_arrays(folder: Path) -> Arrays:
    """The fp32 tensors of `folder`, as `load_weights` gives them. Raises InvalidInput for none, or other ones."""
    from safetensors.numpy import load_file

    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InvalidInput(f"{folder} holds no model*.safetensors", field="model")
    arrays: Arrays = {}
    for file in files:
        arrays |= load_file(file)
    arch = Architecture.from_folder(folder)
    if arch.tied:
        arrays.pop("lm_head.weight", None)
    check_names(arch, {name: array.shape for name, array in arrays.items()})
    return {name: array.astype(np.float32, copy=False) for name, array in arrays.items()}


def save_arrays(folder: Path, arrays: Mapping[str, np.ndarray], companions_from: Path) -> None:
    """Fill the existing `folder`, as `save_weights` does."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / WEIGHTS_FILE)
    copy_companions(folder, companions_from)


def arrays_checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """The weights checksum: of the same tensors in torch it is the same."""
    digest = WeightsDigest()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.begin(name, array.dtype.name, array.shape)
        digest.add(array.data.cast("B") if array.size else b"")
    return digest.hexdigest()
