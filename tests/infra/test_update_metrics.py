"""However sums are merged the figures are the same, and a mean is never a mean of means."""

import random

import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from infra.update_metrics import figures, in_words
from workflows.messages.training import TokenMetrics

counts = st.integers(0, 500)
sums = st.floats(0, 100)
bins = st.dictionaries(st.integers(0, 9), st.integers(1, 50), max_size=4)


@st.composite
def measured(draw: st.DrawFn) -> TokenMetrics:
    values = {}
    for name, field in TokenMetrics.model_fields.items():
        values[name] = draw({int: counts, float: sums}.get(field.annotation, bins))
    return TokenMetrics(**values)


def merge(parts: list[TokenMetrics]) -> TokenMetrics:
    total = TokenMetrics()
    for part in parts:
        total = total.merged(part)
    return total


@given(st.lists(measured(), min_size=1, max_size=8), st.randoms(use_true_random=False))
@with_settings(max_examples=60, deadline=None)
def test_any_split_over_cells_in_any_order_merges_to_the_same(parts: list[TokenMetrics], order: random.Random) -> None:
    cells: list[list[TokenMetrics]] = [[], [], []]
    for part in order.sample(parts, len(parts)):
        order.choice(cells).append(part)
    found = merge([merge(cell) for cell in order.sample(cells, 3)]).model_dump()
    for name, value in merge(parts).model_dump().items():
        assert found[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


def test_means_weigh_every_token_alike() -> None:
    one = TokenMetrics(tokens=1, ratio_sum=5.0, clipped_high=1, versions={3: 1}, computed_tokens=10, path_tokens=10)
    many = TokenMetrics(tokens=99, ratio_sum=99.0, clipped_low=9, versions={2: 99}, computed_tokens=90, path_tokens=240)
    found = figures(one.merged(many), version=4)
    assert found["ratio_mean"] == pytest.approx(1.04)
    assert (found["clip_fraction_high"], found["clip_fraction_low"], found["clip_fraction"]) == (0.01, 0.09, 0.1)
    assert found["staleness_tokens"] == {"1": 1.0, "2": 99.0}
    assert (found["computed_tokens"], found["dedupe_ratio"]) == (100.0, 2.5)


def test_what_was_not_asked_for_is_not_shown_as_zero() -> None:
    plain = TokenMetrics(tokens=2, entropy_tokens=2, entropy_sum=3.0)
    assert figures(plain, 0)["entropy"] == 1.5
    assert "kl_to_reference" not in figures(plain, 0)
    both = plain.merged(TokenMetrics(tokens=2, reference_tokens=2, reference_kl_sum=1.0))
    assert figures(both, 0)["kl_to_reference"] == 0.5


def test_a_line_for_people() -> None:
    found = figures(TokenMetrics(tokens=4, ratio_sum=4.0, ratio_max=1.5, versions={1: 4}, entropy_tokens=4), 2)
    found |= {"loss": -0.25, "grad_norm": 1.5, "micro_steps_by_cell": {"0": 3.0, "1": 1.0}}
    line = in_words(found)
    for part in (
        "loss -0.25, gradient norm 1.5",
        "ratio 1 (at most 1.5)",
        "entropy 0",
        "by staleness 1: 4",
        "0: 3, 1: 1",
    ):
        assert part in line
    assert in_words({}) == ""
