"""A run is read where it lies: moved aside, renamed or copied, never from the folder it was recorded in."""

import json
import shutil

import pytest

from tests.workers.cli.recorded import BATCH, CHECKOUT, Recorded
from workers.cli import runs
from workers.cli.app import main
from workers.supervisor.run_folder import open_manifest, set_aside


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    recorded = Recorded(tmp_path_factory.mktemp("run"))
    recorded.admit()
    recorded.pack()
    recorded.commit()
    recorded.engine.dispose()
    return recorded


@pytest.fixture(params=["moved aside", "renamed", "copied"])
def moved(request, original, tmp_path):
    """The recorded run elsewhere; where it was recorded lies a new one, in which nothing has happened yet."""
    shutil.copytree(original.folder, tmp_path / "run")
    manifest = original.manifest.model_copy(update={"run_dir": str(tmp_path / "run")})
    manifest.save()
    if request.param == "moved aside":
        elsewhere = set_aside(tmp_path / "run")
    elif request.param == "renamed":
        elsewhere = (tmp_path / "run").rename(tmp_path / "other")
    else:
        elsewhere = shutil.copytree(tmp_path / "run", tmp_path / "copy")
        shutil.rmtree(tmp_path / "run")
    open_manifest(original.manifest.fleet, tmp_path / "run", root=CHECKOUT)
    return elsewhere


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_every_reader_takes_the_folder_it_is_given(moved, capsys):
    run("audit", str(moved), "--json")
    assert json.loads(capsys.readouterr().out)["figures"]["executions"] == 3
    run("status", "--run-dir", str(moved), "--json")
    status = json.loads(capsys.readouterr().out)
    assert status["folder"] == str(moved)
    assert status["records"]["model_calls"] == 12
    run("explain", "first/0000/00", "--run-dir", str(moved), "--json")
    assert json.loads(capsys.readouterr().out)["batch"]["batch"] == BATCH
    run("tree", "first/0000/00", "--run-dir", str(moved), "--json")
    assert json.loads(capsys.readouterr().out)["execution"] == "cli/execution/first/0000/00"
    run("report", str(moved))
    capsys.readouterr()
    assert (moved / "report.html").is_file()
    run("checkpoints", "list", str(moved), "--json")
    assert json.loads(capsys.readouterr().out)["folder"] == str(moved / "checkpoints")
    run("replay", "first/9", "--run-dir", str(moved))
    assert "cli/batch/first/0" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("show",), ("offer", "1"), ("reclaim", "1")])
def test_cells_of_a_run_that_stands_still_are_not_asked_of_another(original, arguments, capsys):
    assert run("cells", *arguments, "--run-dir", str(original.folder)) == 2
    assert "is not running" in capsys.readouterr().err


def test_a_run_without_executions_is_not_called_sound(original, tmp_path, capsys):
    open_manifest(original.manifest.fleet, tmp_path / "new", root=CHECKOUT)
    assert run("audit", str(tmp_path / "new")) == 0
    shown = capsys.readouterr().out
    assert "there was nothing to check" in shown
    assert "every invariant holds" not in shown


def test_the_demo_is_found_by_name_and_errors_name_the_argument(tmp_path, monkeypatch, original, capsys):
    monkeypatch.setattr(runs, "CHECKOUT", tmp_path)
    open_manifest(original.manifest.fleet, tmp_path / "var" / "demo" / "run", root=CHECKOUT)
    assert runs.find_run("demo").folder == tmp_path / "var" / "demo" / "run"
    for arguments, field in (
        (("audit", "nobody"), "RUN:"),
        (("ledger", "nobody"), "RUN:"),
        (("ledger", "--run-dir", "nobody"), "--run-dir:"),
        (("simulate", "--from-run", "nobody"), "--from-run:"),
    ):
        assert run(*arguments) == 2
        assert field in capsys.readouterr().err
