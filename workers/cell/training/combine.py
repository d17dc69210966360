"""Combining the sealed gradients of a batch: pure arithmetic and the checks before it.

The order of the sum is fixed (core first, then satellites by index), the division by V happens once, then the global
norm is clipped. Nothing depends on how many cells took part.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.cell.training.optimizer import clip_coefficient
from workflows.messages.errors import Fenced, Permanent
from workflows.messages.training import Accumulated, Participant


@dataclass(frozen=True)
class CombinedGradient:
    """`flat` fp32 [elements], normalised and clipped; `norm` the global norm before clipping."""

    flat: Tensor
    norm: float

    @property
    def checksum(self) -> str:
        """sha256 of the values, little-endian, in the order of the layout."""
        return hashlib.sha256(self.flat.detach().cpu().numpy().data).hexdigest()


def check_participants(
    really: Sequence[Accumulated], accepted: Sequence[Accumulated], participants: Sequence[Participant], version: int
) -> None:
    """Raises Fenced unless the core's own set is the accepted one, no micro-step is claimed twice, and every gradient
    is of `version` and of the boot epoch that claimed."""
    if sorted(really, key=_index) != sorted(accepted, key=_index):
        raise Fenced("the core's accumulated set is not the one the batch accepted")
    seen: dict[int, int] = {entry.index: 0 for entry in accepted}
    if len(seen) != len(accepted):
        raise Fenced("the core's accepted set names a micro-step twice")
    for participant in participants:
        manifest = participant.manifest
        if (manifest.version, manifest.boot_epoch) != (version, participant.boot_epoch):
            raise Fenced(
                f"cell {participant.cell} offers a gradient of version {manifest.version}, boot {manifest.boot_epoch};"
                f" the batch has version {version}, boot {participant.boot_epoch}"
            )
        for entry in participant.accumulated:
            if entry.index in seen:
                raise Fenced(f"micro-step {entry.index} is claimed by cells {seen[entry.index]} and {participant.cell}")
            seen[entry.index] = participant.cell


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


def _index(entry: Accumulated) -> int:
    return entry.index
