"""The weights checksum: one number that says two places hold the same policy.

sha256 over every tensor in sorted order of its Hugging Face name: ``name NUL dtype NUL shape NUL bytes``, dtype as in
"float32", shape as in "512,64", bytes little-endian and contiguous. It is what a version's messages carry, what a
satellite and an engine are verified by, and part of every KV key.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def weights_checksum(named_tensors: Mapping[str, "Tensor"]) -> str:
    """64 hex digits for Hugging Face-named torch tensors of any dtype and device."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(named_tensors):
        tensor = named_tensors[name].detach().cpu().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = ",".join(str(size) for size in tensor.shape)
        digest.update(f"{name}\0{dtype}\0{shape}\0".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
