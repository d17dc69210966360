"""Rows, ratios and bars of a comparison; what is counted where."""

import pytest

from workers.bench.schedulers.report import bars_of, key_of, move_bars, rows_of
from workers.bench.schedulers.run import Measured, by_phase


def measured(label: str, seconds: float, seed: int = 0, **changes) -> Measured:
    values = {
        "workload": "w",
        "label": label,
        "policy": label,
        "seed": seed,
        "split": None,
        "seconds": seconds,
        "wall_seconds": seconds + 3,
        "update_seconds": (seconds,),
        "staleness": 1.0,
        "executions": 8,
        "submitted": 8,
        "calls": 20,
        "moves": 2,
        "returns": 2,
        "move_seconds": 1.0,
        "return_seconds": 1.0,
        "planned_moves": (1, 0),
        "requests_moved": 0,
        "busy_share": 0.4,
        "start_seconds": 10.0,
    }
    return Measured.model_validate(values | changes)


def test_ratios_are_of_the_same_seed_and_errors_of_what_was_measured() -> None:
    runs = [measured("a", 10), measured("b", 14), measured("a", 20, 1), measured("b", 25, 1)]
    rows = rows_of(runs, {key_of(runs[1]): 12.6}, "a")
    assert [row.ratio for row in rows] == [1.0, 1.4, 1.0, 1.25]
    assert [row.error for row in rows] == [None, pytest.approx(-0.1), None, None]


def test_a_bar_needs_every_seed() -> None:
    runs = [measured("a", 10), measured("b", 14), measured("a", 20, 1), measured("b", 25, 1)]
    found = {bar.name: bar for bar in bars_of(rows_of(runs, {}, "a"), "a", {"b": 1.3})}
    assert not found["b / a"].met
    assert found["b / a"].value == "1.400, 1.250"
    assert {bar.name: bar.met for bar in bars_of(rows_of(runs, {}, "a"), "a", {"b": 1.25})}["b / a"]


def test_predictions_are_judged_by_the_worst_one() -> None:
    runs = [measured("a", 10), measured("b", 10)]
    near = bars_of(rows_of(runs, {key_of(runs[0]): 10.9, key_of(runs[1]): 9.1}, "a"), "a", {})
    far = bars_of(rows_of(runs, {key_of(runs[0]): 10.1, key_of(runs[1]): 8.9}, "a"), "a", {})
    assert [bar.met for bar in near] == [True, True]
    assert [bar.met for bar in far] == [True, False]


def test_unequal_staleness_is_no_comparison() -> None:
    runs = [measured("a", 10), measured("b", 14, staleness=1.2)]
    assert not bars_of(rows_of(runs, {}, "a"), "a", {})[0].met


def test_what_makes_a_run_doubtful_is_said() -> None:
    (row,) = rows_of([measured("a", 10, submitted=7, busy_share=0.93)], {}, "a")
    assert "1 of 8 executions" in row.note
    assert "93% busy" in row.note


def test_moves_are_counted_by_phase() -> None:
    assert by_phase([1.0, 5.0, 7.0, 9.0], [6.0]) == (2, 2)
    assert by_phase([1.0], []) == (1,)
    rows = rows_of([measured("a", 10, planned_moves=(2, 3))], {}, "a")
    (bar,) = move_bars(rows, "a", 2)
    assert not bar.met
    assert bar.value.endswith("2/3")
