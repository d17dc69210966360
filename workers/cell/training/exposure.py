"""The publishing side of snapshots, whatever holds the weights: copies in two slots, pinned while somebody reads.

So the core goes on training meanwhile. Without torch: what a slot is made of is the owner's business.
"""

import threading
from collections.abc import Callable
from typing import Any

from infra.transfer import PublishedBuffers, TransferEndpoint
from workflows.messages.errors import StillHeld
from workflows.messages.training import SnapshotReply

BUFFER_NAME = "weights"
PIN_SECONDS = 120.0


class Exposure:
    """`elements`: of the one flat fp32 buffer of a slot, which `allocate` makes and `fill` writes the weights into.

    Thread-safe; memory is allocated at the first `expose` and freed by `close`.
    """

    def __init__(
        self,
        endpoint: TransferEndpoint,
        boot_epoch: int,
        elements: int,
        *,
        allocate: Callable[[], Any],
        fill: Callable[[Any], None],
    ) -> None:
        self._endpoint, self._boot_epoch, self._elements = endpoint, boot_epoch, elements
        self._allocate, self._fill = allocate, fill
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
                self._published.publish_filled(
                    version,
                    lambda: {BUFFER_NAME: self._allocate()},
                    lambda slot: self._fill(slot[BUFFER_NAME]),
                    timeout_seconds=0.0,
                )
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
        return 0 if published is None or published.version is None else 8 * self._elements

    def close(self) -> None:
        """Free the slots. Raises StillHeld while somebody reads."""
        with self._lock:
            if self._published is None:
                return
            if self._published.pins():
                raise StillHeld(f"{self._published.pins()} readers still hold a snapshot")
            self._published.close()
            self._published, self._checksum = None, ""
