"""The weights checksum: one number that says two places hold the same policy.

sha256 over a line for every tensor in sorted order of its Hugging Face name, ``name NUL dtype NUL shape NUL digest``:
dtype as in "float32", shape as in "512,64", digest the 128-bit XXH3 of the bytes, little-endian and contiguous. It is
what a version's messages carry, what a satellite and an engine are verified by, and part of every KV key. It tells
weights apart that differ by accident; it does not stop a forger (docs/decisions/0096-fast-checksums.md).
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128

from infra.weights.layout import FlatLayout

if TYPE_CHECKING:
    from torch import Tensor


class WeightsDigest:
    """The checksum of tensors that come one after the other, in sorted order of their names, their bytes in pieces."""

    def __init__(self) -> None:
        self._total, self._tensor = hashlib.sha256(), xxh3_128()
        self._label: bytes | None = None

    def begin(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """The next tensor; dtype as in ``float32``."""
        self._end()
        self._label = f"{name}\0{dtype}\0{','.join(str(size) for size in shape)}\0".encode()

    def add(self, data: Any) -> None:
        """The next of its bytes: anything with a contiguous buffer."""
        self._tensor.update(data)

    def hexdigest(self) -> str:
        """Once everything has come."""
        self._end()
        return self._total.hexdigest()

    def _end(self) -> None:
        if self._label is not None:
            self._total.update(self._label + self._tensor.digest())
            self._tensor, self._label = xxh3_128(), None


class FlatDigest:
    """The checksum of a flat buffer in `layout` whose bytes come in pieces of any size: it can watch a read of it."""

    def __init__(self, layout: FlatLayout, dtype: str, item_bytes: int) -> None:
        self._digest, self._dtype, self._item_bytes = WeightsDigest(), dtype, item_bytes
        self._tensors: Iterator[tuple[str, tuple[int, ...], int]] = layout.sizes()
        self._missing = 0
        self._next()

    def __call__(self, _name: str, data: memoryview) -> None:
        """The next bytes of the buffer."""
        while len(data):
            part, data = data[: self._missing], data[self._missing :]
            self._digest.add(part)
            self._missing -= len(part)
            self._next()

    def hexdigest(self) -> str:
        """Once all bytes have come."""
        return self._digest.hexdigest()

    def _next(self) -> None:
        while self._missing == 0:
            name, shape, elements = next(self._tensors, ("", (), -1))
            if elements < 0:
                return
            self._digest.begin(name, self._dtype, shape)
            self._missing = elements * self._item_bytes


def weights_checksum(named_tensors: Mapping[str, "Tensor"]) -> str:
    """64 hex digits for Hugging Face-named torch tensors of any dtype and device."""
    import torch

    digest = WeightsDigest()
    for name in sorted(named_tensors):
        tensor = named_tensors[name].detach().cpu().contiguous()
        digest.begin(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        digest.add(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
