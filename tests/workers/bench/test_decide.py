"""The decision benchmark measures what it says: real books, real cells, real plans."""

from infra.simulator.decisions import POLICIES, PlanCase
from workers.bench.decide import full_books, full_table, measure


def test_books_hold_the_executions() -> None:
    books = full_books(10_000)
    assert (books.dispatched, books.launched, books.finished) == (10_000, 7_500, 0)
    assert len(books.roster) == 7_500
    assert len(full_table(64).views(1)) == 64


def test_every_policy_and_size_is_timed() -> None:
    report = measure(cells=8, executions=64, gpus=(16, 32), calls=3)
    assert set(report.decisions) == set(POLICIES)
    assert set(report.plans) == set(report.searches) == {16, 32}
    assert all(timing.median_ms > 0 for timing in report.decisions.values())


def test_plan_that_is_timed_is_a_plan() -> None:
    case = PlanCase(128)
    plan = case.plan()
    assert plan is not None
    assert case.search() is not None
