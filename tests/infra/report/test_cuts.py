"""What a transition did to requests: whose they were, how long harnesses heard nothing, what KV was there."""

from infra.report.changes import Change
from infra.report.cuts import Cut, Resumed, attributed

LEAVING = Change("leaving", 1, "to_training", 10.0, 12.0, "done")
LATER = Change("later", 1, "to_training", 30.0, 31.0, "done")
RELOADING = Change("reloading", 2, "publish", 10.0, 12.0, "done")


def cut(at: float, *, cell: int = 1, quiet_from: float | None = None, heard_at: float | None, cached: int | None = 0):
    return Cut("call", cell, at, 0, at if quiet_from is None else quiet_from, heard_at, 100, cached)


def test_requests_in_flight_belong_to_the_transition_that_cut_them():
    cuts = [
        cut(11.0, quiet_from=10.8, heard_at=11.5, cached=64),
        cut(11.1, heard_at=12.1),
        cut(11.2, cell=2, heard_at=11.3),
        cut(20.0, heard_at=21.0),
    ]
    moved, unexplained = attributed([LEAVING, LATER, RELOADING], cuts, [])
    assert moved.keys() == {"leaving", "reloading"}
    found = moved["leaving"]
    assert (found.requests, round(found.pause_seconds, 6), round(found.longest_pause_seconds, 6)) == (2, 1.7, 1.0)
    assert (found.kv_reused, found.kv_recomputed) == (64, 136)
    assert [one.at for one in unexplained] == [20.0]


def test_a_request_that_has_not_gone_on_yet_counts_without_a_pause():
    moved, _ = attributed([LEAVING], [cut(11.0, heard_at=None, cached=None)], [])
    found = moved["leaving"]
    assert (found.requests, found.unheard, found.pause_seconds, found.kv_recomputed) == (1, 1, 0.0, 0)


def test_executions_inside_a_tool_call_belong_to_the_departure_between_their_calls():
    calls = [
        Resumed("moved", 1, 9.0, 14.0, 0, shared_tokens=80, cached_tokens=70),
        Resumed("in the second one", 1, 20.0, 40.0, 0, shared_tokens=50, cached_tokens=60),
        Resumed("before any", 1, 5.0, 8.0, 0, shared_tokens=99, cached_tokens=0),
        Resumed("still open", 1, 9.0, 14.0, 0, shared_tokens=99, cached_tokens=None),
    ]
    moved, _ = attributed([LEAVING, LATER], [], calls)
    assert (moved["leaving"].resumed, moved["leaving"].kv_reused, moved["leaving"].kv_recomputed) == (2, 70, 10)
    assert (moved["later"].kv_reused, moved["later"].kv_recomputed) == (50, 0)  # what it shares, not more
    assert moved["leaving"].requests == 0
