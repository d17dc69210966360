"""How long queries take, and which end at their time-out."""

from infra.report.queries import durations
from infra.report.reading import ExecutionFact


def fact(
    group: int, seconds: float | None, *, closed: bool = True, end: str = "submitted", limit: float = 100.0, **more
):
    values = {"purpose": "train", "prepared_at": 0.0, "reward": None, **more}
    return ExecutionFact(
        execution=f"e{group}/{seconds}",
        burst="b",
        group=group,
        closed_at=(seconds or 0.0) + 5 if closed else None,
        seconds=seconds if closed else None,
        wall_seconds=limit,
        end_reason=end if closed else None,
        **values,
    )


def test_a_query_takes_as_long_as_its_longest_execution():
    found = durations([fact(0, 10.0), fact(0, 30.0), fact(1, 95.0), fact(1, 20.0), fact(2, 5.0, end="wall_limit")])
    assert [(query.group, query.seconds, query.near_limit) for query in found.queries] == [
        (0, 30.0, False),
        (1, 95.0, True),
        (2, 5.0, True),
    ]
    assert (found.executions, found.near_limit, found.limit_seconds) == (5, 2, (100.0,))
    assert found.ends == {"submitted": 4, "wall_limit": 1}


def test_a_query_with_an_open_execution_is_not_counted_yet():
    found = durations([fact(0, 10.0), fact(0, None, closed=False)])
    assert (found.queries, found.executions) == ((), 1)


def test_an_execution_without_a_timed_harness_lasts_until_its_close():
    (query,) = durations([fact(0, None)]).queries
    assert query.seconds == 5.0


def test_evaluations_are_apart():
    evaluation = fact(0, 10.0, purpose="evaluate")
    assert durations([evaluation]).queries == ()
    assert len(durations([evaluation], "evaluate").queries) == 1
