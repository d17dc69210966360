import numpy as np
import pytest

from infra.logprob_gaps import BINS, histogram, percentile


def test_percentiles_are_upper_edges_close_to_the_true_ones() -> None:
    gaps = 10 ** np.random.default_rng(0).uniform(-7, 1, 5000)
    counts = histogram(gaps)
    assert sum(counts.values()) == 5000
    for fraction in (0.5, 0.9, 0.999):
        true = np.quantile(gaps, fraction, method="inverted_cdf")
        assert true <= percentile(counts, fraction) * (1 + 1e-9)
        assert percentile(counts, fraction) <= true * 1.13


def test_histograms_add_up() -> None:
    gaps = np.array([0.0, 1e-5, 2e-3, 0.4, 5e9])
    whole, first, rest = histogram(gaps), histogram(gaps[:2]), histogram(gaps[2:])
    assert {bin: first.get(bin, 0) + rest.get(bin, 0) for bin in first.keys() | rest.keys()} == whole
    assert {0, BINS - 1} <= whole.keys()


def test_without_gaps_there_is_no_percentile() -> None:
    assert percentile({}, 0.999) == 0.0
    assert percentile(histogram(np.zeros(3)), 0.999) == pytest.approx(0.0, abs=2e-8)
