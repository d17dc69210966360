"""Commands that read a run's records."""

import json
from pathlib import Path

import pytest
from sqlalchemy import delete, insert

from infra.records import schema
from infra.records.database import open_database
from infra.settings.fleet import Fleet
from tests.infra.report.closed import execution_row
from workers.cli import runs
from workers.cli.app import main
from workers.supervisor.run_folder import open_manifest

pytestmark = pytest.mark.usefixtures("run_dir")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    manifest = open_manifest(Fleet(run="r"), tmp_path / "run")
    engine = open_database(manifest.database_url, create=True)
    rows = [
        {"run": "r", "at": 10.0, "kind": "refuse", "cell": 0, "reasons": ["supply 1 < 2"], "state": {"w": 9}},
        {"run": "r", "at": 11.0, "kind": "move", "cell": 0, "reasons": ["w 4 <= 8"], "state": {"w": 4}},
        {"run": "r", "at": 12.0, "kind": "refuse", "cell": 1, "reasons": ["hold", "1 of 2 s"], "state": {"w": 4}},
    ]
    with engine.begin() as connection:
        connection.execute(insert(schema.ledger), rows)
        connection.execute(
            insert(schema.updates),
            [
                {"version": 0, "checksum": "a", "checkpoint": "file:///c0", "committed_at": 1.0, "published_at": 2.0},
                {"version": 1, "checksum": "b", "checkpoint": "file:///c1", "committed_at": 3.0, "published_at": None},
            ],
        )
    engine.dispose()
    return tmp_path / "run"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code if isinstance(ended.value.code, int) else 0


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_ledger_shows_the_newest_entries_in_order(run_dir, capsys):
    run("ledger", "--run-dir", str(run_dir), "--json", "--last", "2")
    assert [entry["at"] for entry in lines(capsys.readouterr().out)] == [11.0, 12.0]


def test_the_ledger_filters_by_kind_and_cell(run_dir, capsys):
    run("ledger", "--run-dir", str(run_dir), "--json", "--kind", "refuse", "--cell", "0")
    (entry,) = lines(capsys.readouterr().out)
    assert (entry["reasons"], entry["state"]) == (["supply 1 < 2"], {"w": 9})


def test_the_ledger_table_names_reasons(run_dir, capsys):
    run("ledger", "--run-dir", str(run_dir))
    shown = capsys.readouterr().out
    assert "w 4 <= 8" in shown
    assert "hold; 1 of 2 s" in shown


def test_status_shows_what_the_newest_update_measured(run_dir, capsys):
    engine = open_database(open_manifest(Fleet(run="r"), run_dir).database_url)
    step = {"run": "r", "burst": "first", "opened_at": 1.0, "version_before": 0}
    figures = {"loss": -0.125, "grad_norm": 0.5, "ratio_mean": 1.01, "entropy": 2.5, "micro_steps_by_cell": {"0": 3.0}}
    with engine.begin() as connection:
        rows = [
            {"batch": "r/batch/first/0", "step": 0, "version_after": 1, "metrics": figures} | step,
            {"batch": "r/batch/first/1", "step": 1, "version_after": 0, "metrics": {}} | step,
        ]
        connection.execute(insert(schema.batches), rows)
    engine.dispose()
    run("status", "--run-dir", str(run_dir), "--json")
    shown = json.loads(capsys.readouterr().out)["records"]["last_update"]
    assert shown == {"batch": "r/batch/first/0", "figures": figures}
    run("status", "--run-dir", str(run_dir))
    text = " ".join(capsys.readouterr().out.split())
    for part in ("loss -0.125", "gradient norm 0.5", "entropy 2.5"):
        assert part in text


def test_status_says_what_came_of_a_burst_and_why_it_trained_nothing(run_dir, capsys):
    engine = open_database(open_manifest(Fleet(run="r"), run_dir).database_url)
    group = {"run": "r", "burst": "first", "admitted_at": 2.0, "admitted_version": 0, "valid": 2, "members": []}
    with engine.begin() as connection:
        connection.execute(delete(schema.executions))
        rewards = [execution_row(member, reward=float(member == 0)) for member in range(4)]
        lost = execution_row(4, end_reason="crashed", outcome="no_artifact", reward=None, detail="exit code 127")
        connection.execute(insert(schema.executions), [*rewards, lost])
        rows = [
            group | {"group_id": f"first/{index}", "group_index": index, "sequence": index, "no_signal": reason}
            for index, reason in enumerate(("equal_rewards", "equal_rewards"))
        ]
        connection.execute(insert(schema.groups), rows)
    engine.dispose()
    run("status", "--run-dir", str(run_dir), "--json")
    records = json.loads(capsys.readouterr().out)["records"]
    assert records["bursts"] == [
        "first: 4 of 5 closed executions are valid, mean reward 0.25; 0 updates; 2 groups admitted, "
        "without signal: 2 equal rewards"
    ]
    assert len(records["alarms"]) == 1
    run("status", "--run-dir", str(run_dir))
    assert "ALARM" in capsys.readouterr().out
    run("ledger", "--run-dir", str(run_dir))
    assert "ALARM burst first: 1 of 5 executions of made-up crashed" in capsys.readouterr().out


def test_status_works_while_the_stack_is_down(run_dir, capsys):
    assert run("status", "--run-dir", str(run_dir), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["records"]["version"], summary["records"]["published"]) == (1, False)
    assert (summary["running"], summary["workflows"]) == (False, {})
    run("status", "--run-dir", str(run_dir))
    assert "not running (`gyre up` starts it)" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_was_never_started_is_named(tmp_path, capsys):
    assert run("ledger", "--run-dir", str(tmp_path / "nowhere")) == 2
    assert "neither a run folder nor the name of a run" in capsys.readouterr().err


def test_without_a_name_the_run_started_last_is_meant(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "CHECKOUT", tmp_path)
    for name in ("one", "two"):
        open_manifest(Fleet(run=name), tmp_path / runs.RUNS / name)
    assert runs.find_run().run == "two"
    assert runs.find_run("one").run == "one"
