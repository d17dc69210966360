"""A rollout engine: executions share it, slow each other down, and end exactly when their work is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.simulator.engine import Engine


def ends_of(engine: Engine, start: float) -> dict[tuple[int, int], float]:
    """When each execution ends if nothing else happens."""
    found: dict[tuple[int, int], float] = {}
    now = start
    while engine.count:
        end = engine.next_end(now)
        assert end is not None
        now = end
        found |= dict.fromkeys(engine.ended(now), now)
    return found


def test_alone_on_an_engine_without_slowdown_it_takes_its_time() -> None:
    engine = Engine(4, 0.0)
    engine.add(5.0, (0, 0), 10.0, 0.5)
    assert ends_of(engine, 5.0) == {(0, 0): 15.0}


def test_load_slows_the_model_but_not_the_tools() -> None:
    """Full engine, slowdown 1: the model takes twice as long, tools as long as ever."""
    for share, seconds in ((1.0, 20.0), (0.0, 10.0), (0.5, 15.0)):
        engine = Engine(2, 1.0)
        for member in range(2):
            engine.add(0.0, (0, member), 10.0, share)
        assert list(ends_of(engine, 0.0).values()) == pytest.approx([seconds] * 2)


def test_beyond_its_slots_requests_take_turns() -> None:
    engine = Engine(2, 0.0)
    for member in range(4):
        engine.add(0.0, (0, member), 10.0, 1.0)
    assert list(ends_of(engine, 0.0).values()) == pytest.approx([20.0] * 4)


def test_what_is_taken_away_keeps_the_work_it_has_left() -> None:
    engine = Engine(1, 1.0)
    engine.add(0.0, (0, 0), 10.0, 1.0)
    left, share = engine.take(10.0, (0, 0))
    assert (left, share) == (pytest.approx(5.0), 1.0)
    assert engine.count == 0
    assert engine.next_end(10.0) is None
    engine.add(10.0, (0, 1), 10.0, 0.0)
    assert engine.ended(19.0) == []
    assert engine.ended(20.0) == [(0, 1)]
    assert engine.busy_slot_seconds == pytest.approx(20.0)


@given(
    works=st.lists(st.tuples(st.floats(0.5, 50), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=12),
    slots=st.integers(1, 6),
    slowdown=st.floats(0, 2),
)
def test_same_as_many_small_steps(works: list[tuple[float, float]], slots: int, slowdown: float) -> None:
    """The clocks give what a simulation in small steps gives."""
    engine = Engine(slots, slowdown)
    for member, (seconds, share) in enumerate(works):
        engine.add(0.0, (0, member), seconds, share)
    exact = ends_of(engine, 0.0)
    left = {member: seconds for member, (seconds, _) in enumerate(works)}
    now = 0.0
    while left:
        load = len(left) / slots
        slow = (1 + slowdown * min(load, 1)) * max(load, 1)
        paces = {member: 1 / (works[member][1] * slow + 1 - works[member][1]) for member in left}
        passed = min(left[member] / paces[member] for member in left)
        now += passed
        for member in list(left):
            left[member] -= passed * paces[member]
            if left[member] <= 1e-9:
                assert exact[(0, member)] == pytest.approx(now, rel=1e-6, abs=1e-4)
                del left[member]
