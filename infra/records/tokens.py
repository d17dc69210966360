"""Token arrays as database blobs: little-endian int32 ids and float32 log-probs, zstd-compressed."""

from collections.abc import Sequence

import numpy as np
import zstandard

_LEVEL = 3


def pack_ids(ids: Sequence[int] | np.ndarray) -> bytes:
    """int32 ids, any length, to a blob."""
    return zstandard.compress(np.asarray(ids, dtype="<i4").tobytes(), _LEVEL)


def unpack_ids(blob: bytes | None) -> list[int]:
    """The ids of a blob; None reads as none."""
    return [] if blob is None else np.frombuffer(zstandard.decompress(blob), dtype="<i4").tolist()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """float32 natural-log probabilities to a blob."""
    return zstandard.compress(np.asarray(logprobs, dtype="<f4").tobytes(), _LEVEL)


def unpack_logprobs(blob: bytes | None) -> list[float]:
    """The log-probs of a blob; None reads as none."""
    return [] if blob is None else np.frombuffer(zstandard.decompress(blob), dtype="<f4").tolist()
