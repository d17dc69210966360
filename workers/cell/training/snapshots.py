"""Weights on their way from the core to everybody else: published under Hugging Face names, pulled, verified.

The core keeps copies in two slots, so it goes on training while satellites read. One flat buffer per slot, in the
layout of the sorted Hugging Face names; a reader accepts it only if the weights checksum is the one it was told.
"""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from infra.transfer import PublishedBuffers, TransferEndpoint
from infra.weights.architecture import Architecture
from infra.weights.checksum import FlatDigest
from infra.weights.layout import FlatLayout
from infra.weights.names import hf_shapes
from workers.cell.training.whole import WholePolicy
from workflows.messages.errors import ChecksumMismatch, StillHeld
from workflows.messages.training import SnapshotReply
from workflows.messages.transfer import BufferManifest

BUFFER_NAME = "weights"
PIN_SECONDS = 120.0


def snapshot_layout(arch: Architecture) -> FlatLayout:
    return FlatLayout.of(hf_shapes(arch))


class Snapshots:
    """The publishing side. Thread-safe; memory is allocated at the first `expose` and freed by `close`."""

    def __init__(self, model: WholePolicy, endpoint: TransferEndpoint, boot_epoch: int) -> None:
        self._model, self._endpoint, self._boot_epoch = model, endpoint, boot_epoch
        self._layout = snapshot_layout(model.arch)
        self._published: PublishedBuffers | None = None
        self._checksum = ""
        self._lock = threading.Lock()

    def expose(self, version: int, checksum: str) -> SnapshotReply:
        """Pin the weights as they are now, which the caller says are `version`; copied once per checksum.

        Raises StillHeld, without waiting, while somebody reads the slot that is due: the caller holds the weights.
        """
        with self._lock:
            if self._published is None:
                self._published = PublishedBuffers(self._endpoint, self._boot_epoch, pin_seconds=PIN_SECONDS)
            if (self._published.version, self._checksum) != (version, checksum):
                self._published.publish_filled(version, self._allocate, self._fill, timeout_seconds=0.0)
                self._checksum = checksum
            pin = self._published.pin()
        return SnapshotReply(
            version=version, checksum=checksum, manifest=pin.manifest, pin=pin.id, pin_seconds=PIN_SECONDS
        )

    def release(self, pin: str) -> None:
        """End a pin; one that has ended already changes nothing."""
        published = self._published
        if published is not None:
            published.release(pin)

    @property
    def pins(self) -> int:
        published = self._published
        return published.pins() if published is not None else 0

    @property
    def bytes(self) -> int:
        """Registered memory, at most two slots."""
        published = self._published
        return 0 if published is None or published.version is None else 8 * self._layout.elements

    def close(self) -> None:
        """Free the slots. Raises StillHeld while somebody reads."""
        with self._lock:
            if self._published is None:
                return
            if self._published.pins():
                raise StillHeld(f"{self._published.pins()} readers still hold a snapshot")
            self._published.close()
            self._published, self._checksum = None, ""

    def _allocate(self) -> dict[str, Tensor]:
        return {BUFFER_NAME: torch.empty(self._layout.elements, dtype=torch.float32)}

    def _fill(self, slot: Mapping[str, Tensor]) -> None:
        weights = self._model.hf_weights()
        for name, view in self._layout.views(slot[BUFFER_NAME]).items():
            view.copy_(weights[name])


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
