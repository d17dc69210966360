"""The supply tests: thresholds, and a hold interval that only unbroken supply fills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workflows.policy.states import cell, state
from workflows.messages.fleet import CellRole
from workflows.policy.state import Hold, Reason, Verdict
from workflows.policy.supply import hold_after, supply, supply_holds, threshold
from workflows.policy.waterlevel import decide

HOLD = 2.0


@pytest.mark.parametrize(("ready", "needed", "is_supply"), [(5, 3, 3), (2, 3, 2), (0, 4, 0), (7, None, 0)])
def test_supply_is_what_is_ready_and_needed(ready: int, needed: int | None, is_supply: int) -> None:
    assert supply(state(ready=ready, needed=needed)) == is_supply


@pytest.mark.parametrize(
    ("fraction", "groups", "groups_seen"),
    [(0.0, 4, 1), (0.5, 4, 2), (0.5, 5, 3), (1.0, 4, 4), (0.0, 1, 1), (1.0, 1, 1), (0.01, 4, 1), (0.28, 25, 7)],
)
def test_satellite_must_see_the_fraction_of_the_batch(fraction: float, groups: int, groups_seen: int) -> None:
    assert threshold(state(supply_fraction=fraction, groups_per_step=groups, needed=groups), 1) == groups_seen


@given(percent=st.integers(0, 100), groups=st.integers(1, 500))
def test_fractions_are_those_a_person_writes(percent: int, groups: int) -> None:
    seen = state(supply_fraction=percent / 100, groups_per_step=groups, needed=groups)
    assert threshold(seen, 1) == max(1, -(-percent * groups // 100))


@pytest.mark.parametrize(("needed", "core", "satellite"), [(4, 2, 2), (2, 2, 2), (1, 1, 2)])
def test_core_needs_no_more_than_the_batch_does(needed: int, core: int, satellite: int) -> None:
    seen = state(needed=needed)
    assert (threshold(seen, 0), threshold(seen, 1)) == (core, satellite)


def test_nobody_joins_near_the_end_of_a_batch_but_the_core() -> None:
    assert supply_holds(state(needed=1, ready=4), 0)
    assert not supply_holds(state(needed=1, ready=4), 1)


def test_core_lost_after_the_last_assignment_comes_back() -> None:
    """All groups are assigned, so no supply will ever come; without the core the batch would stay open for ever."""
    seen = state(needed=0, ready=0)
    decision, _ = decide(seen, None)
    assert (decision.verdict, decision.cell) == (Verdict.MOVE, 0)
    satellite = state(cell(0, CellRole.TRAINING), cell(1), needed=0, ready=4)
    assert decide(satellite, None)[0].reason is Reason.SUPPLY


def test_hold_is_kept_only_for_the_same_cell_without_a_dip() -> None:
    hold = Hold(cell=0, since=99.0)
    assert hold_after(state(), 0, hold) == hold
    assert hold_after(state(), 1, hold) == Hold(cell=1, since=100.0)
    assert hold_after(state(ready=1), 0, hold) is None


def test_move_waits_for_the_hold_interval_and_says_how_long() -> None:
    decision, hold = decide(state(hold_seconds=HOLD), None)
    assert (decision.reason, decision.recheck_seconds) == (Reason.HOLD, HOLD)
    decision, hold = decide(state(hold_seconds=HOLD, now=101.5), hold)
    assert (decision.reason, decision.recheck_seconds) == (Reason.HOLD, 0.5)
    assert decide(state(hold_seconds=HOLD, now=102.0), hold)[0].verdict is Verdict.MOVE


def test_without_streaming_nobody_starts_early_and_no_satellite_joins_late() -> None:
    whole = {"streaming": False}
    assert supply_holds(state(ready=4, needed=4, **whole), 0)
    assert not supply_holds(state(ready=3, needed=4, **whole), 0)
    assert supply_holds(state(ready=1, needed=1, **whole), 0)
    assert not supply_holds(state(ready=1, needed=1, **whole), 1)
    assert not supply_holds(state(ready=7, needed=4, burst_needed=8, **whole), 0)


def test_dip_of_one_tick_restarts_the_hold() -> None:
    _, hold = decide(state(hold_seconds=HOLD), None)
    _, hold = decide(state(hold_seconds=HOLD, now=101.9, ready=1), hold)
    assert hold is None
    _, hold = decide(state(hold_seconds=HOLD, now=101.91), hold)
    assert decide(state(hold_seconds=HOLD, now=103.9), hold)[0].reason is Reason.HOLD
    assert decide(state(hold_seconds=HOLD, now=103.91), hold)[0].verdict is Verdict.MOVE


def test_lack_of_capacity_does_not_restart_the_hold() -> None:
    _, hold = decide(state(hold_seconds=HOLD), None)
    decision, hold = decide(state(hold_seconds=HOLD, now=101.0, work=12), hold)
    assert decision.reason is Reason.CAPACITY
    assert decide(state(hold_seconds=HOLD, now=102.0), hold)[0].verdict is Verdict.MOVE


def test_clock_stepping_backwards_restarts_the_hold() -> None:
    _, hold = decide(state(hold_seconds=HOLD), None)
    decision, hold = decide(state(hold_seconds=HOLD, now=50.0), hold)
    assert decision.reason is Reason.HOLD
    assert decide(state(hold_seconds=HOLD, now=51.9), hold)[0].reason is Reason.HOLD
    assert decide(state(hold_seconds=HOLD, now=52.0), hold)[0].verdict is Verdict.MOVE


@given(since=st.floats(0, 4e9), hold_seconds=st.floats(0, 1e4), waited=st.floats(0, 1))
def test_the_recheck_moment_is_reached(since: float, hold_seconds: float, waited: float) -> None:
    """A scheduler that sleeps as long as it is told, however the floats round, is not told to sleep for ever."""
    hold, now = Hold(cell=0, since=since), since + waited * hold_seconds
    for _ in range(4):
        decision, hold = decide(state(now=now, hold_seconds=hold_seconds), hold)
        if decision.verdict is Verdict.MOVE:
            return
        assert decision.recheck_seconds is not None
        assert decision.recheck_seconds > 0
        now += decision.recheck_seconds
    raise AssertionError(f"still waiting for {decision.recheck_seconds} s at {now}")
