"""All weights of a policy in this process's memory: what optimizer, checkpoints, snapshots and combine work on.

A model of one stage is its own whole. Where stages compute in several processes, the first keeps the whole here, in
host memory, and the stages compute with copies of their parts.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from infra.weights.architecture import Architecture
from infra.weights.names import from_hf, hf_shapes, to_hf


class WholePolicy(Protocol):
    """Parameters under the whole model's Megatron names; weights in and out under Hugging Face names, out in fp32."""

    arch: Architecture

    def named_parameters(self) -> Iterator[tuple[str, Any]]: ...

    def load_hf(self, tensors: Mapping[str, Tensor]) -> None: ...

    def hf_weights(self) -> dict[str, Tensor]: ...


class HostPolicy:
    """See WholePolicy; computes nothing."""

    def __init__(self, arch: Architecture, dtype: torch.dtype = torch.float32) -> None:
        self.arch = arch
        empty = {name: torch.zeros(shape, dtype=dtype) for name, shape in hf_shapes(arch).items()}
        self._named = {name: torch.nn.Parameter(tensor) for name, tensor in from_hf(arch, empty).items()}

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield from self._named.items()

    @torch.no_grad()
    def load_hf(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy in place. Raises InvalidInput on a wrong set."""
        for name, tensor in from_hf(self.arch, tensors).items():
            self._named[name].copy_(tensor)

    def hf_weights(self) -> dict[str, Tensor]:
        """Sorted; detached, views where possible."""
        named = to_hf(self.arch, {name: parameter.detach() for name, parameter in self._named.items()})
        return {name: tensor.to(torch.float32) for name, tensor in named.items()}
