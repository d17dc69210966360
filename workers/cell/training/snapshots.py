"""Weights on their way from the core to everybody else: published under Hugging Face names, pulled, verified.

One flat buffer in the layout of the sorted Hugging Face names; a reader accepts it only if the weights checksum is the
one it was told.
"""

import torch
from torch import Tensor

from infra.transfer import TransferEndpoint
from infra.weights.architecture import Architecture
from infra.weights.checksum import FlatDigest
from infra.weights.layout import FlatLayout
from infra.weights.names import hf_shapes
from workers.cell.training.exposure import BUFFER_NAME, Exposure
from workers.cell.training.whole import WholePolicy
from workflows.messages.errors import ChecksumMismatch
from workflows.messages.transfer import BufferManifest


def snapshot_layout(arch: Architecture) -> FlatLayout:
    return FlatLayout.of(hf_shapes(arch))


class Snapshots(Exposure):
    """Of a Megatron policy, whatever layout computes with it."""

    def __init__(self, model: WholePolicy, endpoint: TransferEndpoint, boot_epoch: int) -> None:
        layout = snapshot_layout(model.arch)

        def allocate() -> Tensor:
            return torch.empty(layout.elements, dtype=torch.float32)

        def fill(flat: Tensor) -> None:
            weights = model.hf_weights()
            for name, view in layout.views(flat).items():
                view.copy_(weights[name])

        super().__init__(endpoint, boot_epoch, layout.elements, allocate=allocate, fill=fill)


def pull_weights(
    endpoint: TransferEndpoint, manifest: BufferManifest, arch: Architecture, checksum: str, timeout_seconds: float
) -> dict[str, Tensor]:
    """Hugging Face-named fp32 tensors read from the core, in memory of their own.

    Raises TransferFailed if the read fails, ChecksumMismatch if the weights are not the promised ones.
    """
    layout = snapshot_layout(arch)
    flat = torch.empty(layout.elements, dtype=torch.float32)
    digest = FlatDigest(layout, "float32", flat.itemsize)
    endpoint.read(manifest, {BUFFER_NAME: flat}, timeout_seconds=timeout_seconds, watch=digest)
    if (found := digest.hexdigest()) != checksum:
        raise ChecksumMismatch(f"snapshot {manifest.version} has checksum {found}, promised {checksum}")
    return layout.views(flat)
