"""Versions of named tensors that stay readable while somebody reads them.

Invariants: a slot is never overwritten while a pin on it is alive; a pin is released exactly once; no pin lives longer
than `pin_seconds`, so a reader that dies cannot block its source for ever (a reader slower than that fails its
checksums instead).
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.transfer.buffers import Buffer, manifest_of
from infra.transfer.endpoint import RegisteredBuffer, TransferEndpoint
from workflows.messages.errors import StillHeld, VersionMismatch
from workflows.messages.transfer import BufferManifest


@dataclass(frozen=True)
class Pin:
    """Leave to read one version until `expires` (the source's monotonic clock, seconds)."""

    id: str
    manifest: BufferManifest
    expires: float


@dataclass
class _Slot:
    buffers: dict[str, Any]
    regions: list[RegisteredBuffer]
    manifest: BufferManifest | None = None


class PublishedBuffers:
    """Two slots of tensor copies; the newer is served, the older is overwritten once nobody reads it. Thread-safe."""

    def __init__(
        self,
        endpoint: TransferEndpoint,
        boot_epoch: int,
        *,
        pin_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint, self.boot_epoch, self.pin_seconds, self._clock = endpoint, boot_epoch, pin_seconds, clock
        self._slots: list[_Slot] = []
        self._current: _Slot | None = None
        self._pins: dict[str, tuple[_Slot, Pin]] = {}
        self._changed = threading.Condition()

    @property
    def version(self) -> int | None:
        """The version served now; None before the first publish."""
        with self._changed:
            return self._current.manifest.version if self._current and self._current.manifest else None

    def publish(self, version: int, tensors: Mapping[str, Buffer], *, timeout_seconds: float = 30.0) -> BufferManifest:
        """Copy `tensors` (same names, shapes and dtypes every time) into the free slot and serve it as `version`.

        Waits for readers of that slot, at most `timeout_seconds`. Raises StillHeld when they stay, VersionMismatch when
        the version goes backwards. Publishing the version already served again replaces its contents.
        """

        def copy(into: Mapping[str, Any]) -> None:
            if into.keys() != tensors.keys():
                raise VersionMismatch("other tensor names than were published before")
            for name, tensor in tensors.items():
                _copy(into[name], tensor)

        def allocate() -> dict[str, Any]:
            return {name: _empty_like(tensor) for name, tensor in tensors.items()}

        return self.publish_filled(version, allocate, copy, timeout_seconds=timeout_seconds)

    def publish_filled(
        self,
        version: int,
        allocate: Callable[[], dict[str, Any]],
        fill: Callable[[Mapping[str, Any]], None],
        *,
        timeout_seconds: float = 30.0,
    ) -> BufferManifest:
        """As `publish`, without a copy of everything on the way: `fill` writes the free slot, which `allocate` has made
        the first time."""
        with self._changed:
            if self._current and self._current.manifest and version < self._current.manifest.version:
                raise VersionMismatch(f"version {version} after {self._current.manifest.version}")
            slot = self._free_slot(allocate, self._clock() + timeout_seconds)
            slot.manifest = None
            fill(slot.buffers)
            slot.manifest = manifest_of(
                self.endpoint.session, slot.buffers, version=version, boot_epoch=self.boot_epoch
            )
            self._current = slot
            return slot.manifest

    def pin(self) -> Pin:
        """Pin the version served now. Raises StillHeld before the first publish."""
        with self._changed:
            self._expire()
            if self._current is None or self._current.manifest is None:
                raise StillHeld("nothing is published yet")
            pin = Pin(uuid.uuid4().hex, self._current.manifest, self._clock() + self.pin_seconds)
            self._pins[pin.id] = (self._current, pin)
            return pin

    def release(self, pin_id: str) -> bool:
        """End a pin. False when it had ended already: a duplicate or late acknowledgement changes nothing."""
        with self._changed:
            self._expire()
            ended = self._pins.pop(pin_id, None) is not None
            self._changed.notify_all()
            return ended

    def pins(self) -> int:
        """Pins alive now."""
        with self._changed:
            self._expire()
            return len(self._pins)

    def close(self) -> None:
        """Forget all pins and unregister the memory. Readers still at it fail."""
        with self._changed:
            self._pins.clear()
            self._current = None
            for slot in self._slots:
                for region in slot.regions:
                    region.close()
            self._slots.clear()
            self._changed.notify_all()

    def _free_slot(self, allocate: Callable[[], dict[str, Any]], deadline: float) -> _Slot:
        if len(self._slots) < 2:
            buffers = allocate()
            regions = [self.endpoint.register(buffer) for buffer in buffers.values() if buffer.nbytes]
            self._slots.append(_Slot(buffers, regions))
            return self._slots[-1]
        slot = next(slot for slot in self._slots if slot is not self._current)
        while self._pinned(slot):
            left = deadline - self._clock()
            if left <= 0:
                raise StillHeld("readers still hold the slot that is to be overwritten")
            self._changed.wait(min(left, 0.1))
        return slot

    def _pinned(self, slot: _Slot) -> bool:
        self._expire()
        return any(pinned is slot for pinned, _ in self._pins.values())

    def _expire(self) -> None:
        now = self._clock()
        for pin_id in [pin_id for pin_id, (_, pin) in self._pins.items() if pin.expires <= now]:
            del self._pins[pin_id]


def _empty_like(tensor: Buffer) -> Any:
    """New contiguous memory of the same shape and dtype."""
    if hasattr(tensor, "detach"):
        return tensor.detach().clone().contiguous()  # pyright: ignore[reportAttributeAccessIssue]
    return tensor.copy(order="C")  # pyright: ignore[reportAttributeAccessIssue]


def _copy(target: Any, source: Buffer) -> None:
    if tuple(target.shape) != tuple(source.shape):
        raise VersionMismatch(f"shape {tuple(source.shape)} where {tuple(target.shape)} was published before")
    if hasattr(target, "copy_"):
        target.copy_(source.detach())  # pyright: ignore[reportAttributeAccessIssue]
    else:
        target[...] = source
