"""Token arrays as database blobs: little-endian int32 ids and float32 log-probs, zstd-compressed."""

from collections.abc import Sequence

import numpy as np
import zstandard

_LEVEL = 3


def pack_ids(ids: Sequence[int] | np.ndarray) -> bytes:
    """int32 ids, any length, to a blob."""
    return zstandard.compress(np.asarray(ids, dtype="<i4").tobytes(), _LEVEL)


def ids_array(blob: bytes | None) -> np.ndarray:
    """The ids of a blob, int32, read-only; None reads as none."""
    return np.frombuffer(b"" if blob is None else zstandard.decompress(blob), dtype="<i4")


def unpack_ids(blob: bytes | None) -> list[int]:
    """The ids of a blob; None reads as none."""
    return ids_array(blob).tolist()


def pack_logprobs(logprobs: Sequence[float] | np.ndarray) -> bytes:
    """float32 natural-log probabilities to a blob."""
    return zstandard.compress(np.asarray(logprobs, dtype="<f4").tobytes(), _LEVEL)


def logprobs_array(blob: bytes | None) -> np.ndarray:
    """The log-probs of a blob, float32, read-only; None reads as none."""
    return np.frombuffer(b"" if blob is None else zstandard.decompress(blob), dtype="<f4")


def unpack_logprobs(blob: bytes | None) -> list[float]:
    """The log-probs of a blob; None reads as none."""
    return logprobs_array(blob).tolist()
