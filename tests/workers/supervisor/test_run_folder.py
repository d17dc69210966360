import json
import os
import shutil
import socket

import pytest
from sqlalchemy import insert

from infra.code import Code
from infra.records.boots import next_boot
from infra.records.database import open_database
from infra.records.schema import executions
from infra.settings.fleet import Fleet
from infra.settings.run import load_run
from tests.infra.report.closed import execution_row
from workers.supervisor.run_folder import FolderLock, is_supervised, open_manifest, set_aside
from workflows.messages.errors import InvalidInput


@pytest.fixture
def fleet(tmp_path):
    return Fleet(run="demo", weights_folder=str(tmp_path / "memory"))


def test_a_new_run_gets_ports_secrets_and_folders(tmp_path, fleet):
    manifest = open_manifest(fleet, tmp_path / "run")
    ports = [
        manifest.proxy_port,
        manifest.proxy_admin_port,
        manifest.metrics_port,
        *manifest.engine_ports,
        *manifest.actor_ports,
        *manifest.linker_ports,
        int(manifest.temporal_address.rsplit(":", 1)[1]),
        int(manifest.temporal_ui.rsplit(":", 1)[1]),
    ]
    assert len(set(ports)) == 14
    assert load_run(tmp_path / "run") == manifest
    for name in ("secrets.json", "run.json"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o600
    assert manifest.logs.is_dir()


def test_a_run_that_goes_on_keeps_its_fleet_and_the_ports_that_are_free(tmp_path, fleet):
    code = Code(version="abc", workflows="def")
    before = open_manifest(fleet, tmp_path / "run").model_copy(update={"code": code})
    before.save()
    assert open_manifest(None, tmp_path / "run") == before
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before.proxy_port))
        taken.listen()
        after = open_manifest(None, tmp_path / "run")
    assert after.proxy_port != before.proxy_port
    assert after == before.model_copy(update={"proxy_port": after.proxy_port})


def test_what_a_run_keeps_for_life_cannot_change(tmp_path, fleet):
    manifest = open_manifest(fleet, tmp_path / "run")
    engine = open_database(manifest.database_url, create=True)
    with engine.begin() as connection:
        connection.execute(insert(executions), [execution_row(0)])
    engine.dispose()
    with pytest.raises(InvalidInput, match=r"^context_tokens: .*--fresh"):
        open_manifest(fleet.model_copy(update={"context_tokens": 8192}), tmp_path / "run")
    changed = open_manifest(fleet.model_copy(update={"harness_slots": 3}), tmp_path / "run")
    assert changed.fleet.harness_slots == 3


def test_a_second_supervisor_is_refused_and_told_who_holds_the_folder(tmp_path):
    with (
        FolderLock(tmp_path),
        pytest.raises(InvalidInput, match=f"running already, started by process {os.getpid()}"),
        FolderLock(tmp_path),
    ):
        pass
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / "supervisor.lock").read_text())["pid"] == os.getpid()


def test_only_a_living_supervisor_holds_a_folder(tmp_path):
    assert not is_supervised(tmp_path)
    with FolderLock(tmp_path):
        assert is_supervised(tmp_path)
        shutil.copytree(tmp_path, tmp_path / "copy")
        assert not is_supervised(tmp_path / "copy")
    assert not is_supervised(tmp_path)


def test_fresh_sets_the_old_run_aside_but_not_a_living_one(tmp_path, fleet):
    run = tmp_path / "run"
    assert set_aside(run) is None
    manifest = open_manifest(fleet, run)
    weights = manifest.published_weights(0)
    weights.mkdir(parents=True)
    with FolderLock(run), pytest.raises(InvalidInput):
        set_aside(run)
    aside = set_aside(run)
    assert aside is not None
    assert (aside / "run.json").exists()
    assert not run.exists()
    assert not weights.exists()


def test_a_new_run_wants_a_database_of_its_own(tmp_path, database_url):
    one, other = (Fleet(run=name, database_url=database_url) for name in ("one", "other"))
    open_manifest(one, tmp_path / "one")
    engine = open_database(database_url)
    next_boot(engine, "control")
    engine.dispose()
    with pytest.raises(InvalidInput, match="database_url: holds the records of another run"):
        open_manifest(other, tmp_path / "other")
    assert not (tmp_path / "other" / "run.json").exists()
    assert open_manifest(None, tmp_path / "one").database_url == database_url


def test_a_database_that_is_not_there_is_named(tmp_path):
    fleet = Fleet(run="x", database_url=f"postgresql://nobody@/none?host={tmp_path}")
    with pytest.raises(InvalidInput, match="database_url: the database cannot be used"):
        open_manifest(fleet, tmp_path / "run")


def test_a_model_that_is_not_there_is_named_before_anything_starts(tmp_path):
    for model, told in (
        (tmp_path, r"^model: .* is no model folder: config\.json, tokenizer\.json, model\*\.safetensors"),
        ("Qwen/Qwen3-0.6B", r"^model: .* has to be a local folder"),
    ):
        with pytest.raises(InvalidInput, match=told):
            open_manifest(Fleet(model=str(model)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_run_in_which_nothing_ran_is_replaced_by_that_of_another_fleet(tmp_path, fleet):
    run = tmp_path / "run"
    with FolderLock(run_dir(run)):
        before = open_manifest(fleet, run)
        engine = open_database(before.database_url, create=True)
        next_boot(engine, "control")
        engine.dispose()
        (run / "logs" / "control.log").write_text("started")
        after = open_manifest(fleet.model_copy(update={"context_tokens": 8192}), run)
        assert after.fleet.context_tokens == 8192
        assert not (run / "records.db").exists()
        assert not list((run / "logs").iterdir())
        assert is_supervised(run)


def run_dir(path):
    path.mkdir()
    return path
