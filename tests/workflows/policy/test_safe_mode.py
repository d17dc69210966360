"""Safe mode: what leads into it, that only an operator leads out, and what is held meanwhile."""

import pytest

from tests.workflows.policy.states import cell, state
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.memory import Memory
from workflows.policy.registry import POLICIES, at_burst_end, decide
from workflows.policy.safe_mode import (
    Cause,
    MoveOutcome,
    SafeMode,
    SafeModeSettings,
    after_allocation,
    after_move,
    after_operator,
    after_telemetry,
    allocation_text,
)
from workflows.policy.state import Reason, Verdict

SETTINGS = SafeModeSettings(failed_moves=3, regretted_moves=2, predictions=3, stale_seconds=60)
FAILED, DONE = MoveOutcome(done=False), MoveOutcome(done=True)
TRAINING, ROLLOUT = CellRole.TRAINING, CellRole.ROLLOUT


def gained(predicted: float, realised: float) -> MoveOutcome:
    return MoveOutcome(done=True, predicted_gain_seconds=predicted, realised_gain_seconds=realised)


def run(*outcomes: MoveOutcome) -> SafeMode:
    mode = SafeMode()
    for at, outcome in enumerate(outcomes):
        mode = after_move(mode, outcome, SETTINGS, float(at))
    return mode


def test_failures_in_a_row_freeze_and_a_success_ends_the_streak() -> None:
    assert not run(FAILED, FAILED, DONE, FAILED, FAILED).frozen
    mode = run(FAILED, FAILED, FAILED)
    assert (mode.cause, mode.since) == (Cause.FAILED_MOVES, 2.0)


def test_five_spaced_failures_of_a_healthy_cell_do_not_add_up() -> None:
    assert not run(*[FAILED, DONE] * 5).frozen


def test_moves_that_make_it_worse_are_regretted() -> None:
    assert not run(gained(10, -1), gained(10, 9), gained(10, 9), gained(10, -1)).frozen
    assert run(gained(10, -1), gained(10, -2)).cause is Cause.REGRETTED_MOVES


def test_predictor_that_lies_is_found_even_if_every_move_pays() -> None:
    assert run(gained(10, 1), gained(12, 2), gained(9, 1)).cause is Cause.WRONG_PREDICTOR
    assert not run(gained(10, 8), gained(12, 10), gained(9, 9)).frozen


def test_policies_that_predict_nothing_are_never_wrong() -> None:
    assert run(*[DONE] * 20) == SafeMode()


def test_stale_telemetry_freezes() -> None:
    assert not after_telemetry(SafeMode(), 60.0, SETTINGS, 5.0).frozen
    assert after_telemetry(SafeMode(), 61.0, SETTINGS, 5.0).cause is Cause.STALE_TELEMETRY


def test_only_an_operator_leads_out_and_the_first_cause_stays() -> None:
    mode = run(FAILED, FAILED, FAILED)
    mode = after_telemetry(after_move(mode, DONE, SETTINGS, 9.0), 0.0, SETTINGS, 9.0)
    mode = after_telemetry(mode, 1000.0, SETTINGS, 10.0)
    assert mode.cause is Cause.FAILED_MOVES
    released = after_operator(mode, freeze=False, detail="", now=11.0)
    assert released == SafeMode()
    assert after_operator(released, freeze=True, detail="maintenance", now=12.0).cause is Cause.OPERATOR


def test_last_valid_allocation_is_remembered() -> None:
    two = state(cell(0, TRAINING), cell(1, TRAINING), cell(2), cell(3))
    mode = after_allocation(SafeMode(), two)
    assert mode.split == 2
    moving = state(cell(0, TRAINING), cell(1, TRAINING), cell(2, CellRole.TO_TRAINING), cell(3))
    nobody_serves = state(*[cell(index, TRAINING) for index in range(4)])
    nobody_trains = state(*[cell(index) for index in range(4)])
    for invalid in (moving, nobody_serves, nobody_trains):
        assert after_allocation(mode, invalid).split == 2
    frozen = after_operator(mode, freeze=True, detail="", now=0.0)
    assert after_allocation(frozen, state(cell(0, TRAINING), cell(1), cell(2))) == frozen


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_frozen_split_is_brought_about_and_held(policy: str) -> None:
    mode = SafeMode(cause=Cause.OPERATOR, split=2)
    back, _ = decide(policy, state(*[cell(index) for index in range(4)]), Memory(), mode)
    assert (back.verdict, back.movers) == (Verdict.MOVE, (0,))
    assert "safe mode" in back.detail
    held = state(cell(0, TRAINING), cell(1, TRAINING), cell(2), cell(3))
    decision, _ = decide(policy, held, Memory(), mode)
    assert (decision.verdict, decision.reason) == (Verdict.REFUSE, Reason.SAFE_MODE)
    assert at_burst_end(policy, held, 8, mode) == (0, 1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_cell_that_arrives_in_training_after_the_freeze_goes_back_between_batches(policy: str) -> None:
    mode = SafeMode(cause=Cause.STALE_TELEMETRY, split=1)
    arrived = [cell(0, TRAINING), cell(1, TRAINING), cell(2)]
    assert decide(policy, state(*arrived), Memory(), mode)[0].verdict is Verdict.REFUSE
    back, _ = decide(policy, state(*arrived, needed=None), Memory(), mode)
    assert (back.movers, back.direction) == ((1,), Direction.TO_ROLLOUT)
    assert "safe mode" in back.detail


def test_what_is_held_in_words() -> None:
    """A cell that was on its way arrives: the split is the least that trains."""
    mode = after_operator(SafeMode(), freeze=True, detail="a test", now=0.0)
    decision, _ = decide("waterlevel", state(cell(0, TRAINING), cell(1, TRAINING), cell(2)), Memory(), mode)
    assert decision.verdict is Verdict.REFUSE
    assert allocation_text(mode) == "at least 1 cell trains from now on"
    assert allocation_text(SafeMode(split=2)) == "at least 2 cells train from now on"
