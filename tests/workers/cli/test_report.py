"""`gyre report` and `gyre ledger` over a whole recorded run."""

import csv
import json

import pytest

from infra.settings.fleet import Fleet
from tests.infra.audit import synthetic
from tests.infra.audit.recording import T0
from tests.workers.cli.test_records import lines, run
from workers.supervisor.run_folder import open_manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    run = synthetic.build(tmp_path_factory.mktemp("recorded"))
    run.engine.dispose()
    return str(run.folder)


def test_the_page_is_written_into_the_run_folder(folder, tmp_path, capsys):
    assert run("report", folder, "--out", str(tmp_path / "page.html")) == 0
    assert "Elasticity" in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_same_as_json(folder, capsys):
    assert run("report", folder, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["totals"]["results"] == {"to_training done": 4, "to_rollout done": 4}


def test_an_unknown_run_is_named(tmp_path, capsys):
    assert run("report", str(tmp_path / "nowhere")) == 2
    assert "neither a run folder nor the name of a run" in capsys.readouterr().err


def test_a_manifest_of_another_version_is_named(tmp_path, capsys):
    folder = tmp_path / "run"
    open_manifest(Fleet(run="r"), folder)
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "long_gone": 1}))
    assert run("report", str(folder)) == 2
    assert "another version of OpenGyre, or is damaged (long_gone)" in " ".join(capsys.readouterr().err.split())


def test_where_nothing_can_be_written(folder, tmp_path, capsys):
    assert run("report", folder, "--out", str(tmp_path / "no" / "page.html")) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run("ledger", folder, "--csv", str(tmp_path / "no" / "d.csv")) == 2
    assert "--csv: there is no folder" in capsys.readouterr().err


def test_a_run_without_records_has_a_page(tmp_path):
    open_manifest(Fleet(run="r"), tmp_path / "run")
    assert run("report", str(tmp_path / "run")) == 0
    assert "Nothing is on record yet" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_ledger_says_what_came_of_a_move(folder, capsys):
    assert run("ledger", folder, "--kind", "move", "--json") == 0
    entries = lines(capsys.readouterr().out)
    assert [(entry["cell"], entry["came_of_it"]["result"]) for entry in entries] == [(0, "done"), (1, "done")] * 2
    assert entries[0]["state"]["dispatched"] == 12


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("--kind", "refuse"), 2),
        (("--cell", "1"), 2),
        (("--reason", "VERSION"), 2),
        (("--policy", "waterlevel"), 0),
        (("--since", "+0", "--until", "+50"), 5),
        (("--since", "2023-11-14T00:00"), 10),
        (("--last", "3"), 3),
        (("--last", "0"), 10),
    ],
)
def test_filters(folder, capsys, options, count):
    assert run("ledger", folder, "--json", *options) == 0
    assert len(lines(capsys.readouterr().out)) == count


def test_a_time_that_is_none_is_refused(folder, capsys):
    assert run("ledger", folder, "--since", "yesterday") == 2
    assert "--since" in capsys.readouterr().err


def test_decisions_and_transitions_are_exported(folder, tmp_path, capsys):
    assert run("ledger", folder, "--csv", str(tmp_path / "d.csv"), "--parquet", str(tmp_path / "d.parquet")) == 0
    assert run("ledger", folder, "--transitions", "--csv", str(tmp_path / "t.csv")) == 0
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["started_at"]) == T0
    assert {row["direction"] for row in rows} == {"boot", "to_training", "to_rollout", "publish"}
    assert (tmp_path / "d.parquet").stat().st_size > 0
    assert "10 rows" in capsys.readouterr().out
    assert run("ledger", folder, "--last", "2", "--csv", str(tmp_path / "d.csv")) == 0
    assert "2 rows" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--totals", "--transitions"])
def test_what_people_read(folder, capsys, option):
    assert run("ledger", folder, option) == 0
    assert "training" in capsys.readouterr().out
