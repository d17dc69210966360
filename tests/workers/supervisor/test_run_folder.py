import json
import os
import socket

import pytest

from infra.records.boots import next_boot
from infra.records.database import open_database
from infra.settings.fleet import Fleet
from infra.settings.run import load_run
from workers.supervisor.run_folder import FolderLock, open_manifest, set_aside
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
    before = open_manifest(fleet, tmp_path / "run")
    assert open_manifest(None, tmp_path / "run") == before
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before.proxy_port))
        taken.listen()
        after = open_manifest(None, tmp_path / "run")
    assert after.proxy_port != before.proxy_port
    assert after == before.model_copy(update={"proxy_port": after.proxy_port})


def test_what_a_run_keeps_for_life_cannot_change(tmp_path, fleet):
    open_manifest(fleet, tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"^context_tokens: .*--fresh"):
        open_manifest(fleet.model_copy(update={"context_tokens": 8192}), tmp_path / "run")
    changed = open_manifest(fleet.model_copy(update={"harness_slots": 3}), tmp_path / "run")
    assert changed.fleet.harness_slots == 3


def test_a_second_supervisor_is_refused_and_told_who_holds_the_folder(tmp_path):
    with FolderLock(tmp_path), pytest.raises(InvalidInput, match=f'"pid": {os.getpid()}'), FolderLock(tmp_path):
        pass
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / "supervisor.lock").read_text())["pid"] == os.getpid()


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
    with pytest.raises(InvalidInput, match=r"model: .*config\.json is missing"):
        open_manifest(Fleet(model=str(tmp_path)), tmp_path / "run")
