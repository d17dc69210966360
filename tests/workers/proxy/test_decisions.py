"""The pure decisions: order of held-back requests, placement, new homes, budgets."""

import pytest

from workers.proxy.admission import Held, order
from workers.proxy.budget import output_budget
from workers.proxy.continuation import versions_of
from workers.proxy.dispatch import segment_seed
from workers.proxy.placement import Demand, Engine, place, rehome
from workflows.messages.errors import ContextOverflow


def engine(cell, **changes):
    known = {"door_open": True, "version": 1, "slots": 4, "kv_tokens": 1000, "running": 0, "reserved_tokens": 0}
    values = {"name": f"e{cell}", "cell": cell, "standalone": False, "executions": 0, **known, **changes}
    return Engine(**values)


def demand(home=None, newest=None, reserved=100, since=0.0):
    return Demand(home, newest, reserved, since)


def names(waiting, now):
    return [held.call for held in order(waiting, now, 30)]


def test_furthest_executions_first_then_warm_prefixes_then_age():
    waiting = [Held("new", 0, 0, 1), Held("far", 9, 0, 3), Held("warm", 9, 50, 4), Held("old", 0, 0, 0)]
    assert names(waiting, now=5) == ["warm", "far", "old", "new"]


def test_nobody_waits_for_ever():
    waiting = [Held("far", 9, 0, 31), Held("second", 0, 0, 1), Held("first", 0, 0, 0)]
    assert names(waiting, now=32) == ["first", "second", "far"]


@pytest.mark.parametrize(
    ("engines", "wanted", "now", "chosen"),
    [
        ([engine(0), engine(1, executions=1)], demand(), 0, "e0"),
        ([engine(0, executions=1), engine(1)], demand(), 0, "e1"),
        ([engine(0), engine(1)], demand(), 0, "e1"),  # as for moves: the highest cell leaves last
        ([engine(0, executions=9), engine(1)], demand("e0"), 0, "e0"),  # sticky
        ([engine(0, door_open=False), engine(1)], demand("e0"), 0.5, None),
        ([engine(0, door_open=False), engine(1)], demand("e0"), 1.5, "e1"),
        ([engine(0, running=4), engine(1)], demand("e0"), 0.5, None),
        ([engine(0, running=4), engine(1)], demand("e0"), 1.5, "e1"),
        ([engine(0, free_at=9), engine(1)], demand("e0"), 0, "e1"),
        ([engine(0, free_at=9)], demand("e0"), 8, None),
        ([engine(0, free_at=9)], demand("e0"), 9, "e0"),
        ([engine(0, version=3), engine(1, version=4)], demand("e0", newest=4), 2, "e1"),
        ([engine(0, version=3)], demand(newest=4), 99, None),
        ([engine(0, version=None)], demand(), 99, None),
        ([engine(0, running=1, reserved_tokens=950)], demand(), 99, None),
        ([engine(0, reserved_tokens=0)], demand(reserved=5000), 0, "e0"),  # alone it must be tried
        ([engine(0, running=4), engine(1, running=4)], demand(), 99, None),
        ([], demand("gone"), 0, None),
        ([engine(1)], demand("gone"), 0, "e1"),
    ],
)
def test_placement(engines, wanted, now, chosen):
    assert place(engines, wanted, now, sticky_wait_seconds=1) == chosen


def test_new_homes_prefer_standalone_then_the_highest_cell_within_slots():
    engines = [engine(0), engine(1, slots=2, executions=1), engine(2), engine(9, standalone=True, slots=1)]
    homes = rehome(engines, "e2", {"a": None, "b": None, "c": None})
    assert homes == {"a": "e9", "b": "e1", "c": "e0"}


def test_what_finds_no_room_or_only_older_weights_waits():
    engines = [engine(0, version=3, slots=1), engine(1, door_open=False), engine(2)]
    assert rehome(engines, "e2", {"a": 4, "b": 3, "c": None}) == {"a": "", "b": "e0", "c": ""}


@pytest.mark.parametrize(
    ("prompt", "asked", "imposed", "budget"),
    [(700, None, 1000, 300), (700, 300, 1000, 300), (700, None, 256, 256), (700, 10**6, 256, 256), (999, 1, 9, 1)],
)
def test_budgets(prompt, asked, imposed, budget):
    assert output_budget(prompt, asked, imposed, 1000) == budget


@pytest.mark.parametrize(
    ("prompt", "asked", "told"), [(1000, None, 0), (1001, None, 0), (1001, 5, 0), (700, 301, 301), (1000, 1, 1)]
)
def test_overflows(prompt, asked, told):
    with pytest.raises(ContextOverflow) as refused:
        output_budget(prompt, asked, 1000, 1000)
    assert (refused.value.prompt_tokens, refused.value.budget, refused.value.limit) == (prompt, told, 1000)


def test_seeds_are_reproducible_and_all_different():
    seeds = {
        segment_seed("r", execution, 1, sequence, segment)
        for execution in ("a", "b")
        for sequence in range(20)
        for segment in range(5)
    }
    assert len(seeds) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert segment_seed("r", "a", 1, 2, 3) == segment_seed("r", "a", 1, 2, 3)


@pytest.mark.parametrize(
    ("tokens", "newest", "before", "versions"),
    [
        (0, 4, 3, ()),
        (1, 3, 3, (3,)),
        (1, 4, 3, (4,)),
        (4, 4, 4, (4, 4, 4, 4)),
        (4, 4, 3, (3, 3, 3, 4)),  # the change is somewhere in here: staleness is not understated
    ],
)
def test_versions_of_a_piece(tokens, newest, before, versions):
    assert versions_of(tokens, newest, before) == versions
