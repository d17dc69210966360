"""Stand-in for SGLang's compiled kernels on a CPU without them: what serving a dense text model really calls, in torch.

With native attention and PyTorch sampling that is the request table's update and the hash behind seeded sampling.
Every other name can be imported and fails when called. On the path only without CUDA.
"""

from collections.abc import Callable

import torch

__version__ = "0.0.0"

_MASK = 0xFFFFFFFF


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def unavailable(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError(f"this machine has no compiled sgl_kernel.{name}")

    return unavailable


def assign_req_to_token_pool_cpu(
    rows: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    _row_length: int,
) -> None:
    """Write each request's new KV slots, concatenated in `slots`, into its row of `table` at [start, end)."""
    offset = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[offset : offset + end - start].to(table.dtype)
        offset += end - start


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """One MurmurHash3 (x86, 32 bit) round. int64 products wrap, their low 32 bits are right."""
    block = _rotate((block * 0xCC9E2D51) & _MASK, 15)
    state = state ^ ((block * 0x1B873593) & _MASK)
    return (_rotate(state, 13) * 5 + 0xE6546B64) & _MASK


def _murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 of (seed as two words, position, column): [n], [n], [m] integers to uint32 of shape [n, m]."""
    seed = seed.view(torch.int64).unsqueeze(1)
    state = torch.zeros_like(seed)
    for block in (seed & _MASK, (seed >> 32) & _MASK, positions.to(torch.int64).unsqueeze(1) & _MASK):
        state = _mix(state, block)
    state = _mix(state, columns.to(torch.int64).unsqueeze(0) & _MASK) ^ 16
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return (state ^ (state >> 16)).to(torch.uint32)


_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")
_library.impl("murmur_hash32_cpu", _murmur_hash32, "CPU")
