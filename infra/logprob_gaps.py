"""A histogram of |log-prob - behaviour log-prob| that merges by adding: 20 bins a decade from 1e-8 to 1e3.

Percentiles are read off as the upper edge of a bin, so they are never too small and at most 12.3% too large. Bin 0
also holds everything smaller (exact zeros), the last bin everything larger.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

BINS_PER_DECADE = 20
LOWEST_DECADE, HIGHEST_DECADE = -8, 3
BINS = BINS_PER_DECADE * (HIGHEST_DECADE - LOWEST_DECADE)


def histogram(gaps: Any) -> dict[int, int]:
    """Bin -> count of a 1-D array of non-negative gaps; empty bins are left out."""
    values = np.maximum(np.asarray(gaps, dtype=np.float64), 10.0**LOWEST_DECADE)
    bins = np.floor((np.log10(values) - LOWEST_DECADE) * BINS_PER_DECADE).astype(np.int64)
    found, counts = np.unique(np.clip(bins, 0, BINS - 1), return_counts=True)
    return {int(bin): int(count) for bin, count in zip(found, counts, strict=True)}


def percentile(gaps: Mapping[int, int], fraction: float) -> float:
    """Smallest bin edge that at least `fraction` (0..1) of the gaps do not exceed; 0.0 without gaps."""
    total = sum(gaps.values())
    seen = 0
    for bin in sorted(gaps):
        seen += gaps[bin]
        if seen >= fraction * total:
            return 10.0 ** ((bin + 1) / BINS_PER_DECADE + LOWEST_DECADE)
    return 0.0
