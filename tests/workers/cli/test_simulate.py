"""`gyre simulate` and `gyre plan` as a person calls them."""

import json
from pathlib import Path

import pytest

from workers.cli.app import USAGE_ERROR, main

SCENARIO = """
name = "small"
cells = 2
steps = 4
groups_per_step = 2
executions_per_group = 2
[engines]
slots = 8
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


def called(*arguments: str) -> int:
    """Run the command; returns its exit status."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


def test_json_alone_is_printed_and_the_picture_is_written(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "roles.png"
    assert called("simulate", str(scenario), "--json", "--plot", str(picture)) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in report["variants"]] == [
        "waterlevel",
        "throughput",
        "lending",
        "async",
        "colocate",
    ]
    assert min(one["relative"] for one in report["variants"]) == 1.0
    assert all(len(one["steps"]) == 4 for one in report["variants"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_ablation_runs_every_policy_three_ways(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("simulate", str(scenario), "--ablate", "--json") == 0
    labels = [one["label"] for one in json.loads(capsys.readouterr().out)["variants"]]
    assert len(labels) == 15
    assert {"waterlevel, streaming", "waterlevel, no stream", "waterlevel, shuffled"} <= set(labels)


def test_table_names_every_policy(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("simulate", str(scenario)) == 0
    shown = capsys.readouterr().out
    assert "staleness 1" in shown
    assert "colocate" in shown


def test_wrong_input_ends_with_a_usage_error_that_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("cells = 'many'")
    assert called("simulate", str(path)) == USAGE_ERROR
    assert "cells:" in capsys.readouterr().err
    assert called("simulate", "--paper", "--ablate") == USAGE_ERROR
    assert "--paper" in capsys.readouterr().err
    assert called("plan", "--nodes", "0") == USAGE_ERROR


def test_plan_prints_its_report(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = tmp_path / "search.toml"
    search.write_text('cells = [1, 2]\nburst_steps = [1]\npolicies = ["waterlevel"]\nseeds = 2\nshort_steps = 3\n')
    assert called("plan", str(scenario), "--search", str(search), "--hours", "100", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["best"]["policy"] == "waterlevel"
    assert report["steps_in_budget"] > 0
    search.write_text("trails = 3")
    assert called("plan", "--search", str(search)) == USAGE_ERROR
    assert "trails" in capsys.readouterr().err


def test_the_table_fits_eighty_columns_whole(scenario: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert called("simulate", str(scenario), "--ablate") == 0
    shown = capsys.readouterr()
    assert "\u2026" not in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    for column in ("ratio", "moves", "moved"):
        assert shown.out.count(column) >= 2, "a column and its legend"
    assert len([line for line in shown.err.splitlines() if " of 15 done (" in line]) == 15
