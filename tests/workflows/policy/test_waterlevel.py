"""The waterlevel move: capacity, order, who may not move, and the edges of sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workflows.policy.states import cell, state
from workflows.messages.fleet import CellRole
from workflows.policy.ordering import is_prefix, next_mover, training_cells
from workflows.policy.state import CellView, Hold, PolicyState, Reason, Verdict
from workflows.policy.waterlevel import after_publish, core_may_stay, decide

TRAINING, ROLLOUT, PARKED = CellRole.TRAINING, CellRole.ROLLOUT, CellRole.PARKED


def reason_of(seen: PolicyState, hold: Hold | None = None) -> Reason:
    return decide(seen, hold)[0].reason


@pytest.mark.parametrize(("work", "moves"), [(0, True), (8, True), (9, False), (12, False)])
def test_core_leaves_when_the_rest_covers_the_waterlevel(work: int, moves: bool) -> None:
    decision, _ = decide(state(work=work), None)
    assert (decision.verdict is Verdict.MOVE) == moves
    assert decision.cell == 0
    assert decision.reason is (Reason.ALL_TESTS_PASS if moves else Reason.CAPACITY)


def test_queued_executions_count_as_well_as_running_ones() -> None:
    seen = state(work=9)
    assert reason_of(seen.model_copy(update={"launched": seen.finished})) is Reason.CAPACITY


def test_satellite_follows_the_core() -> None:
    seen = state(cell(0, TRAINING), cell(1), cell(2), work=4)
    decision, _ = decide(seen, None)
    assert (decision.verdict, decision.cell) == (Verdict.MOVE, 1)
    assert is_prefix(seen, 1)
    assert training_cells(seen) == (0,)


def test_engines_that_do_not_serve_yet_cover_nothing() -> None:
    assert reason_of(state(cell(0), cell(1), cell(2, serving=False), work=5)) is Reason.CAPACITY


def test_standalone_engines_cover_what_a_cell_leaves() -> None:
    assert reason_of(state(cell(0), work=4, standalone_slots=4)) is Reason.ALL_TESTS_PASS


def test_single_cell_leaves_only_at_zero() -> None:
    assert reason_of(state(cell(0), work=1)) is Reason.CAPACITY
    assert reason_of(state(cell(0), work=0)) is Reason.ALL_TESTS_PASS


def test_parked_core_refuses_everybody() -> None:
    decision, hold = decide(state(cell(0, PARKED), cell(1), cell(2)), None)
    assert (decision.verdict, decision.reason, hold) == (Verdict.REFUSE, Reason.CORE_PARKED, None)
    # Nor does anyone follow when satellites are in training without it.
    assert reason_of(state(cell(0, PARKED), cell(1, TRAINING), cell(2))) is Reason.CORE_PARKED


@pytest.mark.parametrize("role", [CellRole.LOST, CellRole.STARTING])
def test_absent_core_refuses_everybody(role: CellRole) -> None:
    assert reason_of(state(cell(0, role), cell(1), cell(2))) is Reason.CORE_ABSENT


def test_parked_satellite_is_skipped_and_covers_nothing() -> None:
    seen = state(cell(0, TRAINING), cell(1, PARKED), cell(2), cell(3), work=4)
    decision, _ = decide(seen, None)
    assert (decision.verdict, decision.cell) == (Verdict.MOVE, 2)
    assert is_prefix(seen, 2)
    assert reason_of(state(cell(0, TRAINING), cell(1, PARKED), cell(2), cell(3), work=5)) is Reason.CAPACITY


def test_cell_that_never_trains_stays() -> None:
    seen = state(cell(0, TRAINING), cell(1, trains=False), cell(2))
    assert decide(seen, None)[0].cell == 2
    assert next_mover(state(cell(0, TRAINING), cell(1, trains=False))) is None


def test_nobody_left_to_move() -> None:
    assert reason_of(state(cell(0, TRAINING), cell(1, TRAINING))) is Reason.NO_CELL
    assert reason_of(state(cell(0, CellRole.LOST))) is Reason.CORE_ABSENT


def test_no_batch_no_move() -> None:
    assert reason_of(state(needed=None)) is Reason.NO_BATCH


def test_one_leaves_at_a_time() -> None:
    leaving = state(cell(0, TRAINING), cell(1, CellRole.TO_TRAINING), cell(2), move_under_way=True)
    assert reason_of(leaving) is Reason.MOVE_UNDER_WAY
    assert reason_of(state(cell(0, CellRole.TO_TRAINING), cell(1), cell(2))) is Reason.NOT_SERVING


def test_returning_core_is_waited_for_not_overtaken() -> None:
    decision, _ = decide(state(cell(0, CellRole.TO_ROLLOUT), cell(1), cell(2)), None)
    assert (decision.reason, decision.cell) == (Reason.NOT_SERVING, 0)


def test_one_execution_and_eight_cells() -> None:
    """Cells move as soon as what is left covers the one; the last of them would leave it without a home."""
    for leaving in range(8):
        cells = [cell(index, TRAINING if index < leaving else ROLLOUT, slots=1) for index in range(8)]
        decision, _ = decide(state(*cells, work=1), None)
        assert decision.cell == leaving
        assert (decision.verdict is Verdict.MOVE) == (leaving < 7)


def test_burst_of_nothing_moves_nobody() -> None:
    assert reason_of(state(needed=0, ready=0, groups_per_step=0)) is Reason.SUPPLY
    assert reason_of(state(needed=None, ready=0, groups_per_step=0)) is Reason.NO_BATCH


@given(
    slots=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    work=st.integers(0, 40),
    ready=st.integers(0, 8),
    needed=st.integers(0, 8),
    roles=st.lists(st.sampled_from(CellRole), min_size=6, max_size=6),
)
def test_no_move_ever_breaks_capacity_or_order(
    slots: list[int], work: int, ready: int, needed: int, roles: list[CellRole]
) -> None:
    cells = [cell(index, roles[index], slots=count) for index, count in enumerate(slots)]
    seen = state(*cells, work=work, ready=ready, needed=needed, groups_per_step=8)
    decision, _ = decide(seen, None)
    if decision.verdict is Verdict.REFUSE:
        return
    assert decision.cell is not None
    serving = sum(view.slots for view in cells if view.role is ROLLOUT)
    assert work <= serving - cells[decision.cell].slots
    assert cells[decision.cell].role is ROLLOUT
    skipped = (PARKED, CellRole.LOST, CellRole.STARTING)
    assert all(view.role is TRAINING or view.role in skipped for view in cells[: decision.cell])
    assert cells[0].role not in skipped


@pytest.mark.parametrize(
    ("ready", "work", "dispatch", "reason"),
    [
        (2, 0, 8, Reason.ALL_TESTS_PASS),
        (1, 0, 8, Reason.SUPPLY),
        (2, 0, 9, Reason.CAPACITY),
        (2, 5, 4, Reason.CAPACITY),
        (2, 4, 4, Reason.ALL_TESTS_PASS),
    ],
)
def test_core_stays_only_if_supply_and_the_next_dispatch_allow(
    ready: int, work: int, dispatch: int, reason: Reason
) -> None:
    training = state(cell(0, TRAINING), cell(1, TRAINING), cell(2), ready=ready, needed=None, work=work)
    decision = core_may_stay(after_publish(training, 4), dispatch)
    assert decision.reason is reason
    assert (decision.verdict is Verdict.MOVE) == (reason is Reason.ALL_TESTS_PASS)


def test_after_publish_counts_those_who_return_but_not_the_core_or_the_parked() -> None:
    seen = after_publish(state(cell(0, TRAINING), cell(1, TRAINING), cell(2, PARKED), cell(3)), 4)
    assert seen.capacity == 8


@pytest.mark.parametrize("leaving", [cell(2, leaving=True, trains=False), cell(2, CellRole.RETIRING, trains=False)])
def test_a_cell_that_leaves_the_fleet_serves_no_next_burst(leaving: CellView) -> None:
    """Four slots stay: five executions do not fit without the core."""
    seen = state(cell(0, TRAINING), cell(1, TRAINING), leaving, needed=None)
    assert after_publish(seen, 4).capacity == 4
    assert core_may_stay(after_publish(seen, 4), 4).verdict is Verdict.MOVE
    assert core_may_stay(after_publish(seen, 4), 5).reason is Reason.CAPACITY
