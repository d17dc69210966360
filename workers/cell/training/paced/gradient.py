"""The gradient of a paced trainer: a sum of vectors drawn from the payloads, read one-sided like a real one."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from infra.transfer import RegisteredBuffer, TransferEndpoint, manifest_of
from workflows.messages.errors import Permanent
from workflows.messages.training import Participant
from workflows.messages.transfer import BufferManifest

BUFFER_NAME = "gradients"


def drawn(payload_sha256: str, elements: int) -> np.ndarray:
    """What a micro-step adds: fp32 [elements], a function of its payload alone."""
    return np.random.default_rng(int(payload_sha256[:16], 16)).standard_normal(elements, dtype=np.float32)


class GradientSum:
    """fp32 [elements], registered while a cell trains."""

    def __init__(self, elements: int, endpoint: TransferEndpoint) -> None:
        self.flat = np.zeros(elements, dtype=np.float32)
        self._endpoint = endpoint
        self._region: RegisteredBuffer = endpoint.register(self.flat)

    @property
    def bytes(self) -> int:
        return self.flat.nbytes

    def add(self, payload_sha256: str) -> None:
        self.flat += drawn(payload_sha256, self.flat.size)

    def zero(self) -> None:
        self.flat[:] = 0

    def manifest(self, version: int, boot_epoch: int) -> BufferManifest:
        return manifest_of(self._endpoint.session, {BUFFER_NAME: self.flat}, version=version, boot_epoch=boot_epoch)

    def close(self) -> None:
        self._region.close()


@dataclass(frozen=True)
class Combined:
    """`flat` fp32 [elements], normalised and clipped; `norm` before clipping."""

    flat: np.ndarray
    norm: float

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.flat.data).hexdigest()


def combined(
    own: np.ndarray,
    participants: Iterable[Participant],
    endpoint: TransferEndpoint,
    *,
    valid_executions: int,
    max_norm: float,
    timeout_seconds: float,
) -> Combined | None:
    """Core first, then satellites by index; divided once, clipped. None if nobody added anything: there is no update.

    Raises TransferFailed; Permanent if not finite.
    """
    total = own.copy()
    for participant in sorted(participants, key=lambda one: one.cell):
        into = np.empty_like(own)
        endpoint.read(participant.manifest, {BUFFER_NAME: into}, timeout_seconds=timeout_seconds)
        total += into
    if not total.any():
        return None
    total /= valid_executions
    norm = float(np.linalg.norm(total.astype(np.float64)))
    if not math.isfinite(norm):
        raise Permanent(f"the combined gradient has norm {norm}; no update is made")
    total *= min(1.0, max_norm / (norm + 1e-6))
    return Combined(total, norm)
