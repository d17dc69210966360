"""Sets of intervals against the same sets as plain integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.report import intervals
from infra.report.intervals import Cumulative, common, length, merged, without

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def array(found):
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def points(found) -> set[int]:
    """The unit cells [n, n + 1) that are covered."""
    return {number for begin, end in found for number in range(int(begin), int(end))}


@given(pairs)
def test_a_union_is_disjoint_and_covers_the_same(found):
    union = merged(array(found))
    assert points(union) == points(found)
    assert length(union) == len(points(found))
    assert (union[1:, 0] > union[:-1, 1]).all()


@given(pairs, pairs)
def test_what_two_unions_share_and_what_one_has_alone(one, other):
    a, b = merged(array(one)), merged(array(other))
    assert points(common(a, b)) == points(one) & points(other)
    assert points(without(a, b)) == points(one) - points(other)
    assert length(common(a, b)) + length(without(a, b)) == pytest.approx(length(a))


@given(pairs)
def test_counts_over_time(found):
    moments, levels = intervals.steps(array(found))
    for number in range(40):
        known = moments <= number
        level = levels[known][-1] if known.any() else 0
        assert level == sum(begin <= number < end for begin, end in found)


@given(pairs, st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_what_was_done_adds_up(found, one, two, three):
    begin, middle, end = sorted((one, two, three))
    amounts = np.arange(1.0, len(found) + 1)
    done = Cumulative(array(found), amounts)
    assert done.between(begin, middle) + done.between(middle, end) == pytest.approx(done.between(begin, end), abs=1e-6)
    assert done.between(-1, 60) == pytest.approx(amounts.sum())


def test_an_amount_is_spread_evenly_over_its_interval():
    done = Cumulative(array([(0, 10), (5, 10)]), np.array([100.0, 50.0]))
    assert done.between(0, 5) == pytest.approx(50)
    assert done.between(5, 10) == pytest.approx(100)
