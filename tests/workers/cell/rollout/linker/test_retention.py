import pytest

from workers.cell.rollout.linker import retention
from workers.cell.rollout.linker.retention import LeaseDesk, Sessions
from workflows.messages.errors import Fenced, StillHeld


def test_a_chain_replaces_what_it_extends_and_ignores_what_it_contains():
    sessions = Sessions()
    sessions.note("s", ("a",))
    sessions.note("s", ("a", "b", "c"))
    sessions.note("s", ("a", "b"))
    assert sessions.chains("s") == (("a", "b", "c"),)
    assert sessions.chains("other") == ()


def test_branches_are_kept_newest_last_and_bounded():
    sessions = Sessions()
    for number in range(10):
        sessions.note("s", ("root", f"branch-{number}"))
    assert [chain[1] for chain in sessions.chains("s")] == ["branch-6", "branch-7", "branch-8", "branch-9"]
    sessions.note("s", ("root", "branch-7", "more"))
    assert sessions.chains("s")[-1] == ("root", "branch-7", "more")
    assert len(sessions.chains("s")) == 4
    sessions.note("s", ("root",))
    assert len(sessions.chains("s")) == 4


def test_the_least_recently_used_session_goes_first(monkeypatch):
    monkeypatch.setattr(retention, "MAX_SESSIONS", 2)
    sessions = Sessions()
    for name in ("a", "b", "a", "c"):
        sessions.note(name, (name,))
    assert sessions.names() == ("a", "c")


def test_a_lease_ends_exactly_once_and_numbers_never_go_back():
    desk = LeaseDesk()
    lease, new = desk.open(5, frozenset({"s"}), expires=10)
    assert new
    assert desk.open(5, frozenset(), expires=99) == (lease, False)
    with pytest.raises(Fenced):
        desk.open(4, None, expires=10)
    with pytest.raises(StillHeld):
        desk.refuse_early_release(5)
    assert [desk.end(5), desk.end(5)] == [True, False]
    desk.refuse_early_release(5)
    with pytest.raises(Fenced, match="has ended"):
        desk.open(5, None, expires=10)
    with pytest.raises(Fenced):
        desk.get(5)


def test_a_lease_never_given_is_over_once_it_was_ended():
    desk = LeaseDesk()
    desk.open(5, None, expires=10)
    assert not desk.end(6)
    assert desk.current is None
    with pytest.raises(Fenced):
        desk.open(6, None, expires=10)
    desk.open(7, None, expires=10)


def test_a_newer_lease_supersedes_and_time_ends_one():
    desk = LeaseDesk()
    desk.open(1, None, expires=10)
    desk.open(2, None, expires=20)
    assert not desk.end(1)
    assert not desk.expire(now=19)
    assert desk.expire(now=20)
    assert (desk.expire(now=30), desk.expired, desk.end(2)) == (False, 1, False)
