"""Hand-offs between two stores over the real transfer engine, in one process. Field case 42 as far as it needs none."""

import pytest
import torch

from infra.transfer import TransferEndpoint
from tests.workers.cell.rollout.linker.stores import PAGE_TOKENS, chain, insert, make_store, pages
from workflows.messages.errors import Fenced, InvalidInput, StillHeld, TransferFailed
from workflows.messages.kv import Pull, Retain


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def endpoints() -> tuple[TransferEndpoint, TransferEndpoint]:
    return TransferEndpoint(), TransferEndpoint()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(endpoints, clock):
    store = make_store(endpoints[0], clock=clock)
    yield store
    store.close()


@pytest.fixture
def destination(endpoints):
    store = make_store(endpoints[1], boot_epoch=2)
    yield store
    store.close()


def retain(lease: int, *sessions: str, hold: float = 30.0) -> Retain:
    return Retain(lease=lease, sessions=sessions, hold_seconds=hold)


def test_a_whole_hand_off(source, destination):
    insert(source, "a", chain("a", 5))
    insert(source, "b", chain("b", 4))
    insert(source, "left", chain("left", 6))
    armed = source.retain(retain(7, "a", "b", "unknown"))
    assert (armed.pages, armed.missing) == (7, ("unknown",))
    insert(source, "a", chain("a", 9))
    manifest = source.manifest(7)
    assert manifest.chains == {"a": (tuple(chain("a", 9)),), "b": (tuple(chain("b", 4)),)}

    pulled = destination.pull(Pull(manifest=manifest))
    assert (set(pulled.arrived), pulled.pages, pulled.present) == ({"a", "b"}, 11, 0)
    assert pulled.tokens == 13 * PAGE_TOKENS
    assert torch.equal(destination.rows(chain("a", 9)), pages(chain("a", 9)))
    again = destination.pull(Pull(manifest=manifest))
    assert (again.pages, again.present, set(again.arrived)) == (0, 11, {"a", "b"})

    with pytest.raises(StillHeld):
        source.release(7)
    assert source.acknowledge(7).released
    assert not source.acknowledge(7).released, "a duplicate acknowledgement changes nothing"
    assert not source.release(7).released
    stats = source.stats()
    assert (stats.pinned_pages, stats.leases) == (0, 0)


def test_a_session_inherits_the_prefix_another_session_stored(source, destination):
    """The shared system prompt was offloaded under another execution: without its chain nothing of `late` would hit."""
    insert(source, "first", chain("first", 3))
    insert(source, "late", chain("late", 4))
    source.retain(retain(1, "late"))
    pulled = destination.pull(Pull(manifest=source.manifest(1)))
    assert pulled.pages == 4
    assert destination.prefix(chain("late", 4)) == 4


def test_an_execution_that_moves_twice_inside_one_tool_call_keeps_its_prefix(endpoints, source, destination):
    insert(source, "a", chain("a", 5))
    source.retain(retain(1, "a"))
    destination.pull(Pull(manifest=source.manifest(1)))
    destination.retain(retain(4, "a"))
    third = make_store(endpoints[0], boot_epoch=3)
    assert third.pull(Pull(manifest=destination.manifest(4))).arrived == ("a",)
    third.close()


def test_armed_pages_survive_pressure_and_unarmed_ones_do_not(endpoints):
    store = make_store(endpoints[0], pages=10)
    insert(store, "a", chain("a", 6))
    store.retain(retain(1, "a"))
    assert not insert(store, "b", chain("b", 10, shared=0)), "only four slots are left"
    assert len(store.manifest(1).pages.entries) == 6
    assert store.stats().refused_pages == 6
    store.close()


def test_a_lost_acknowledgement_ends_by_time_and_exactly_once(source, clock):
    insert(source, "a", chain("a", 5))
    source.retain(retain(3, "a", hold=30))
    clock.now = 29
    assert source.stats().pinned_pages == 5
    clock.now = 31
    assert source.stats().pinned_pages == 0
    assert source.stats().expired_leases == 1
    assert not source.acknowledge(3).released, "the late acknowledgement comes after the expiry"
    assert not source.release(3).released
    with pytest.raises(Fenced):
        source.manifest(3)


def test_no_hold_is_longer_than_the_bound(source, clock):
    insert(source, "a", chain("a", 5))
    source.retain(retain(3, "a", hold=3600))
    clock.now = 61
    assert source.stats().leases == 0


def test_memory_given_up_before_the_read_fails_the_checksum_and_keeps_nothing(endpoints, destination):
    store = make_store(endpoints[0], pages=6)
    insert(store, "a", chain("a", 5))
    store.retain(retain(1, "a"))
    manifest = store.manifest(1)
    assert store.release(1, abandon=True).released
    insert(store, "b", chain("b", 6, shared=0))
    with pytest.raises(TransferFailed, match="checksum"):
        destination.pull(Pull(manifest=manifest))
    assert destination.stats().used_pages == 0
    assert destination.prefix(chain("a", 5)) == 0
    store.close()


def test_a_flush_during_the_hold_hides_pages_but_the_hand_off_goes_on(source, destination):
    insert(source, "a", chain("a", 5))
    source.retain(retain(1, "a"))
    source.drop_all()
    assert source.prefix(chain("a", 5)) == 0, "KV from before a flush is never used again here"
    assert destination.pull(Pull(manifest=source.manifest(1))).arrived == ("a",)
    source.acknowledge(1)
    assert source.stats().used_pages == 0


def test_leases_are_fenced(source):
    insert(source, "a", chain("a", 5))
    insert(source, "b", chain("b", 3))
    source.retain(retain(5, "a"))
    with pytest.raises(Fenced):
        source.retain(retain(4, "b"))
    assert source.retain(retain(5, "a")).pages == 5
    assert source.retain(retain(6, "b")).pages == 3, "a newer lease supersedes the older"
    assert not source.acknowledge(5).released
    assert source.stats().pinned_pages == 3


def test_a_release_that_overtakes_its_retain_leaves_nothing_pinned(source):
    insert(source, "a", chain("a", 5))
    source.retain(retain(5, "a"))
    assert not source.release(6, abandon=True).released
    assert source.stats().pinned_pages == 0
    with pytest.raises(Fenced):
        source.retain(retain(6, "a"))


def test_only_equal_layouts_exchange_pages(endpoints, source):
    insert(source, "a", chain("a", 3))
    source.retain(retain(1, "a"))
    other = make_store(endpoints[1], geometry="more layers")
    with pytest.raises(InvalidInput, match="more layers"):
        other.pull(Pull(manifest=source.manifest(1)))
    other.close()


def test_only_the_sessions_asked_for_are_read(source, destination):
    insert(source, "a", chain("a", 5))
    insert(source, "b", chain("b", 5))
    source.retain(Retain(lease=1, sessions=None))
    pulled = destination.pull(Pull(manifest=source.manifest(1), sessions=("b",)))
    assert (pulled.arrived, pulled.pages) == (("b",), 5)


def test_a_destination_without_room_keeps_a_prefix_and_says_that_it_did_not_arrive(endpoints, source):
    small = make_store(endpoints[1], pages=3)
    insert(source, "a", chain("a", 5))
    source.retain(retain(1, "a"))
    pulled = small.pull(Pull(manifest=source.manifest(1)))
    assert (pulled.arrived, pulled.pages) == ((), 3)
    assert small.prefix(chain("a", 5)) == 3
    small.close()
