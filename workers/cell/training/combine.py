"""Combining the sealed gradients of a batch: pure arithmetic.

The order of the sum is fixed (core first, then satellites by index), the division by V happens once, then the global
norm is clipped. Nothing depends on how many cells took part.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.cell.training.optimizer import clip_coefficient
from workflows.messages.errors import Permanent


@dataclass(frozen=True)
class CombinedGradient:
    """`flat` fp32 [elements], normalised and clipped; `norm` the global norm before clipping."""

    flat: Tensor
    norm: float

    @property
    def checksum(self) -> str:
        """sha256 of the values, little-endian, in the order of the layout."""
        return hashlib.sha256(self.flat.detach().cpu().numpy().data).hexdigest()


def sum_in_order(own: Tensor, others: Iterable[Tensor]) -> Tensor:
    """A new tensor: `own` plus each of `others` in the order given; fp32 [elements]."""
    total = own.clone()
    for other in others:
        total += other.to(total.device)
    return total


def normalise_and_clip(total: Tensor, valid_executions: int, max_norm: float) -> CombinedGradient:
    """Divide `total` by V and clip its global norm, in place. Raises Permanent for a gradient that is not finite."""
    total /= valid_executions
    norm = torch.linalg.vector_norm(total, dtype=torch.float64).item()
    if not math.isfinite(norm):
        raise Permanent(f"the combined gradient has norm {norm}; no update is made")
    total *= clip_coefficient(norm, max_norm)
    return CombinedGradient(total, norm)
