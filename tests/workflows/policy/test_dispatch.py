"""Dispatch at a boundary, launching, and the staleness that follows from it."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.messages.burst import BurstSpec
from workflows.policy.dispatch import launchable, top_up
from workflows.policy.staleness import carry_over_for, expected_staleness


def quota_of(groups: int, steps: int, carry_over: float, *, final: bool = False) -> int:
    spec = BurstSpec(
        run="r", name="b", tasks="t", groups_per_step=groups, steps=steps, carry_over=carry_over, final=final
    )
    return spec.quota


@given(quota=st.integers(0, 1000), outstanding=st.integers(0, 1000))
def test_top_up_is_exact(quota: int, outstanding: int) -> None:
    assert outstanding + top_up(quota, outstanding) == max(quota, outstanding)
    assert top_up(quota, outstanding) >= 0


@given(groups=st.integers(0, 64), steps=st.integers(1, 8), eighths=st.integers(0, 40), outstanding=st.integers(0, 600))
def test_boundary_tops_up_to_phi_plus_mu_batches(groups: int, steps: int, eighths: int, outstanding: int) -> None:
    carry_over = eighths / 8
    quota = quota_of(groups, steps, carry_over)
    assert quota == round((carry_over + steps) * groups)
    assert outstanding + top_up(quota, outstanding) == max(outstanding, round((carry_over + steps) * groups))
    assert quota_of(groups, steps, carry_over, final=True) == steps * groups


def test_burst_of_nothing_dispatches_nothing() -> None:
    assert top_up(quota_of(0, 2, 1.0), 0) == 0


@given(capacity=st.integers(0, 50), running=st.integers(0, 50), queued=st.integers(0, 50))
def test_launch_fills_free_slots_and_no_more(capacity: int, running: int, queued: int) -> None:
    count = launchable(capacity, running, queued)
    assert 0 <= count <= queued
    assert count == 0 or running + count <= capacity
    assert count == queued or running + count >= capacity


def mean_staleness(groups: int, steps: int, carry_over: float, draw: random.Random | None, bursts: int = 240) -> float:
    """Group-weighted mean of version at the update minus version at dispatch, after a warm-up.

    Groups are consumed in order of dispatch, or in any order when `draw` is given.
    """
    outstanding: deque[int] = deque()
    version, ages = 0, []
    for burst in range(bursts):
        quota = round((carry_over + steps) * groups)
        outstanding.extend([version] * top_up(quota, len(outstanding)))
        for step in range(steps):
            for _ in range(groups):
                if draw is not None:
                    outstanding.rotate(draw.randrange(len(outstanding)))
                dispatched = outstanding.popleft()
                if burst >= bursts // 4:
                    ages.append(version + step - dispatched)
        version += steps
    return sum(ages) / len(ages)


@settings(max_examples=25)
@given(groups=st.integers(1, 5), steps=st.integers(1, 4), carried=st.integers(0, 8))
def test_staleness_is_the_formula(groups: int, steps: int, carried: int) -> None:
    carry_over = carried / groups
    assert mean_staleness(groups, steps, carry_over, None) == pytest.approx(
        expected_staleness(carry_over, steps), abs=0.05
    )


@pytest.mark.parametrize(("steps", "carry_over"), [(1, 1.0), (2, 0.5), (2, 1.0), (4, 0.0)])
def test_staleness_does_not_depend_on_the_order_of_training(steps: int, carry_over: float) -> None:
    measured = mean_staleness(4, steps, carry_over, random.Random(3), bursts=1600)
    assert measured == pytest.approx(expected_staleness(carry_over, steps), abs=0.05)


@given(target=st.floats(0, 10), steps=st.integers(1, 16))
def test_carry_over_for_a_staleness_gives_that_staleness(target: float, steps: int) -> None:
    assert expected_staleness(carry_over_for(target, steps), steps) == pytest.approx(target)
