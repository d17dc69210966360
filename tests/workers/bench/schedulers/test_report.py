"""Rows, ratios and bars of a comparison; what is counted where."""

import pytest

from tests.workers.bench.schedulers.test_workload import small
from workers.bench.schedulers.report import bars_of, key_of, move_bars, rows_of
from workers.bench.schedulers.run import Measured, by_phase, is_of, sha256_of
from workflows.messages.policies import PolicySettings


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


def test_what_ran_other_executions_is_set_against_nothing() -> None:
    """A folder may hold runs from before the workload was drawn anew."""
    runs = [measured("a", 10, workload_sha256="new"), measured("b", 14, workload_sha256="old")]
    assert [row.ratio for row in rows_of(runs, {}, "a")] == [1.0, None]


def test_a_remark_takes_no_verdict_away() -> None:
    runs = [measured("a", 10), measured("b", 14)]
    rows = rows_of(runs, {}, "a", {key_of(runs[1]): "slow start"})
    assert [row.remark for row in rows] == ["", "slow start"]
    assert bars_of(rows, "a", {"b": 1.3})[0].met is True


def test_a_bar_needs_every_seed() -> None:
    runs = [measured("a", 10), measured("b", 14), measured("a", 20, 1), measured("b", 25, 1)]
    found = {bar.name: bar for bar in bars_of(rows_of(runs, {}, "a"), "a", {"b": 1.3})}
    assert found["b / a"].met is False
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
    assert bars_of(rows_of(runs, {}, "a"), "a", {})[0].met is False


def test_what_makes_a_run_doubtful_is_said() -> None:
    (row,) = rows_of([measured("a", 10, submitted=7, busy_share=0.93)], {}, "a")
    assert "1 of 8 executions" in row.note
    assert "93% busy" in row.note


@pytest.mark.parametrize("changes", [{"submitted": 7}, {"busy_share": 0.93}])
@pytest.mark.parametrize("doubtful", ["a", "b"])
def test_a_run_in_doubt_decides_no_bar(doubtful: str, changes: dict) -> None:
    """Not its own ratio, nor the ratio to it; what is sound can still fail."""
    runs = [measured("a", 10), measured("b", 14), measured("a", 20, 1), measured("b", 28, 1)]
    runs[doubtful == "b"] = runs[doubtful == "b"].model_copy(update=changes)
    predicted = {key_of(one): one.seconds for one in runs}

    def verdicts(least: float) -> list[bool | None]:
        rows = rows_of(runs, predicted, "a")
        return [bar.met for bar in bars_of(rows, "a", {"b": least}) + move_bars(rows, doubtful, 2)]

    assert verdicts(1.3) == [None] * 4
    assert verdicts(1.5) == [False, None, None, None]


def test_only_what_is_in_doubt_falls_short() -> None:
    runs = [measured("a", 10), measured("b", 11, busy_share=0.93), measured("a", 20, 1), measured("b", 28, 1)]
    assert bars_of(rows_of(runs, {}, "a"), "a", {"b": 1.3})[0].met is None


def test_two_settings_of_one_policy_are_two_contestants() -> None:
    runs = [measured("async", 10), measured("async-streaming", 14, policy="async", staleness=1.2)]
    (bar,) = bars_of(rows_of(runs, {}, "async"), "async", {})
    assert bar.met is False
    assert "async-streaming" in str(bar.value)


def test_a_result_from_before_is_of_the_same_workload_policy_and_code() -> None:
    workload, policy = small(), PolicySettings(name="async", split=1)
    known = measured(
        "async", 10, workload_sha256=sha256_of(workload), policy_sha256=sha256_of(policy), code_version="abc"
    )
    assert is_of(known, workload, policy, "abc")
    assert not is_of(known, small(tokens_per_second=21.0), policy, "abc")
    assert not is_of(known, workload, policy.model_copy(update={"hold_seconds": 1.0}), "abc")
    assert not is_of(known, workload, policy, "abd")
    assert not is_of(measured("async", 10), workload, policy, "abc")
    for version in ("unknown", "abc+changes"):
        assert not is_of(known.model_copy(update={"code_version": version}), workload, policy, version)


def test_moves_are_counted_by_phase() -> None:
    assert by_phase([1.0, 5.0, 7.0, 9.0], [6.0]) == (2, 2)
    assert by_phase([1.0], []) == (1,)
    rows = rows_of([measured("a", 10, planned_moves=(2, 3))], {}, "a")
    (bar,) = move_bars(rows, "a", 2)
    assert bar.met is False
    assert str(bar.value).endswith("2/3")
