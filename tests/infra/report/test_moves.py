"""Decisions, the transitions behind them, and what changed: realised rates, realised gain, the prediction's error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.report.changes import Boot, Change, Entry, Roles
from infra.report.moves import STEPS_COMPARED, WINDOW_SECONDS, Work, moves_of

NOTHING = (np.empty((0, 2)), np.empty(0))


def decision(at: float, cell: int | None = 1, kind: str = "move", **more) -> Entry:
    return Entry(f"t{at}", at, kind, cell, ("gain", "in words"), policy="throughput", **more)


def transition(start: float, end: float, cell: int = 1, direction: str = "to_training", result: str = "done") -> Change:
    return Change(f"{direction}/{cell}/{start}", cell, direction, start, end, result)


def work(*, per_second=(), committed=(), finished=()) -> Work:
    """`per_second`: (begin, end, tokens a second) of sampling."""
    spans = np.array([(begin, end) for begin, end, _ in per_second], dtype=np.float64).reshape(-1, 2)
    tokens = np.array([(end - begin) * rate for begin, end, rate in per_second], dtype=np.float64)
    return Work((spans, tokens), NOTHING, finished, committed)


def weighed(entries, changes, done=None, end=1000.0):
    roles = Roles(changes, [Boot(cell, 0.0) for cell in range(3)], end)
    return moves_of(entries, changes, roles, done or work(), end)


def test_a_decision_owns_the_transitions_of_its_cells_until_the_next_one():
    changes = [
        transition(10.2, 11),
        transition(10.3, 12, cell=2),
        transition(40.1, 41, result="parked"),
        transition(45.0, 46),
        transition(60.1, 61, direction="to_rollout"),
    ]
    entries = [decision(10.0, together=(2,)), decision(40.0), decision(60.0, kind="return"), decision(90.0)]
    first, second, third, fourth = weighed(entries, changes)
    assert [change.cell for change in first.changes] == [1, 2]
    assert (first.result, first.ended_at, first.topology_after) == ("done", 12, "starting 0; training 1-2")
    assert [change.result for change in second.changes] == ["parked", "done"]  # resumed by an operator
    assert second.result == "done"
    assert [change.direction for change in third.changes] == ["to_rollout"]
    assert (fourth.result, fourth.ended_at, fourth.topology_after) == ("", None, "")


def test_the_first_failure_is_the_result():
    changes = [transition(10.2, 11), transition(10.3, 12, cell=2, result="rolled_back")]
    (move,) = weighed([decision(10.0, together=(2,))], changes)
    assert move.result == "rolled_back"


def test_rates_before_and_after():
    done = work(per_second=[(0, 100, 50.0), (110, 300, 20.0)], finished=[95.0, 99.0, 120.0])
    (move,) = weighed([decision(100.0)], [transition(100.1, 110)], done)
    assert move.before is not None
    assert move.after is not None
    assert (move.before.seconds, move.after.seconds) == (WINDOW_SECONDS, WINDOW_SECONDS)
    assert (move.before.sampled_tokens, move.after.sampled_tokens) == pytest.approx((50.0, 20.0))
    assert (move.before.executions, move.after.executions) == pytest.approx((2 / 60, 1 / 60))


def test_no_window_reaches_over_another_role_change():
    done = work(per_second=[(0, 90, 1000.0), (90, 130, 50.0), (130, 300, 1000.0)])
    changes = [transition(80, 90, cell=2), transition(100.1, 110), transition(130, 131, cell=2, direction="to_rollout")]
    (move,) = weighed([decision(100.0)], changes, done)
    assert move.before is not None
    assert move.after is not None
    assert (move.before.seconds, move.before.sampled_tokens) == pytest.approx((10, 50.0))
    assert (move.after.seconds, move.after.sampled_tokens) == pytest.approx((20, 50.0))


def test_what_is_too_short_shows_nothing():
    changes = [transition(99.5, 99.8, cell=2), transition(100.1, 110), transition(110.5, 111, cell=2)]
    (move,) = weighed([decision(100.0)], changes, work(per_second=[(0, 300, 10.0)]))
    assert (move.before, move.after) == (None, None)


def test_moves_that_overlap_are_weighed_together():
    done = work(per_second=[(0, 100, 50.0), (112, 300, 20.0)])
    changes = [transition(100.1, 112), transition(100.6, 110, cell=2)]
    one, other = weighed([decision(100.0), decision(100.5, cell=2)], changes, done)
    assert one.shared == other.shared == 2
    assert one.before == other.before
    assert one.after == other.after
    assert one.after is not None
    assert one.after.sampled_tokens == pytest.approx(20.0)


def test_the_realised_gain_is_in_seconds_of_whole_steps_around_the_move():
    committed = [0, 10, 20, 30, 37, 43, 49, 55, 61]
    (move,) = weighed([decision(31.0, expected_gain_seconds=5.0)], [transition(31.1, 33)], work(committed=committed))
    assert move.realised_gain_seconds == pytest.approx(10 - 6)  # the step from 30 to 37 is neither before nor after
    assert move.prediction_error == pytest.approx(1 / 5)


def test_steps_are_not_taken_from_beyond_the_next_predicted_move():
    committed = [0, 10, 20, 30, 40, 46, 52, 100, 200]
    entries = [decision(31.0, expected_gain_seconds=4.0), decision(53.0, cell=2, expected_gain_seconds=1.0)]
    changes = [transition(31.1, 33), transition(53.1, 54, cell=2)]
    first, second = weighed(entries, changes, work(committed=committed))
    assert first.realised_gain_seconds == pytest.approx(10 - 6)
    assert second.realised_gain_seconds == pytest.approx(6 - 100)
    assert second.prediction_error == pytest.approx(95 / 94)


def test_without_a_prediction_or_without_steps_there_is_no_error():
    committed = [0, 10, 20, 30, 40, 50]
    (unpredicted,) = weighed([decision(21.0)], [transition(21.1, 22)], work(committed=committed))
    (unfinished,) = weighed(
        [decision(51.0, expected_gain_seconds=1.0)], [transition(51.1, 52)], work(committed=committed)
    )
    assert (unpredicted.realised_gain_seconds, unpredicted.prediction_error) == (None, None)
    assert (unfinished.realised_gain_seconds, unfinished.prediction_error) == (None, None)


def test_a_move_of_processor_slots_has_a_gain_and_no_transition():
    committed = [0, 10, 20, 30, 38, 46]
    entries = [
        decision(21.0, cell=None, expected_gain_seconds=2.0),
        Entry("o", 39.0, "outcome", None, ("realised",), realised_gain_seconds=1.5, about="t21.0"),
    ]
    (move,) = weighed(entries, [], work(committed=committed))
    assert (move.changes, move.result, move.realised_gain_seconds) == ((), "", pytest.approx(10 - 8))
    assert move.judged_gain_seconds == 1.5


moments = st.lists(st.floats(0, 100), min_size=1, max_size=12, unique=True).map(sorted)


@given(moments, st.data())
def test_every_transition_has_one_decision_at_most(starts, data):
    entries = [decision(at, cell=data.draw(st.integers(0, 2)), kind=data.draw(st.sampled_from(["move", "return"])))
               for at in data.draw(moments)]  # fmt: skip
    changes = [
        transition(
            at, at + 0.5, data.draw(st.integers(0, 2)), data.draw(st.sampled_from(["to_training", "to_rollout"]))
        )
        for at in starts
    ]
    moves = weighed(entries, changes)
    owned = [change.transition for move in moves for change in move.changes]
    assert len(owned) == len(set(owned))
    assert [move.entry.at for move in moves] == sorted(entry.at for entry in entries)
    for move in moves:
        assert all((c.cell, c.direction) == (move.entry.cell, move.entry.heading) for c in move.changes)


@given(st.lists(st.floats(0.5, 20), min_size=3, max_size=12), st.floats(-5, 5), st.data())
def test_the_gain_is_that_of_the_steps_next_to_the_move(lengths, expected, data):
    committed = np.concatenate(([0.0], np.cumsum(lengths)))
    during = data.draw(st.integers(1, len(lengths) - 2))  # the step in which it moves belongs to neither side
    at = float(committed[during]) + lengths[during] / 2
    (move,) = weighed([decision(at, cell=None, expected_gain_seconds=expected)], [], work(committed=list(committed)))
    before, after = lengths[:during][-STEPS_COMPARED:], lengths[during + 1 :][:STEPS_COMPARED]
    assert move.realised_gain_seconds == pytest.approx(np.mean(before) - np.mean(after), abs=1e-9)
    assert move.prediction_error is not None
    assert 0 <= move.prediction_error <= 2
