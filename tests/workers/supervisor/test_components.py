from infra.settings.fleet import Fleet
from workers.supervisor import fleet_components
from workers.supervisor.run_folder import open_manifest


def test_a_fleet_is_started_in_order_each_component_told_its_run_folder(tmp_path):
    manifest = open_manifest(Fleet(), tmp_path / "run")
    specs = fleet_components(manifest)
    names = ["temporal", "control", "proxy", "cell-0", "cell-1", "cell-2", "harness-host"]
    assert [spec.name for spec in specs] == names
    assert [spec.stage for spec in specs] == sorted(spec.stage for spec in specs)
    for spec in specs[1:]:
        assert spec.argv[1] == "-m"
        assert spec.argv[3:5] == ("--run-dir", manifest.run_dir)
    assert specs[-2].argv[5:] == ("--cell", "2")


def test_the_development_server_keeps_its_state_in_the_run_folder_and_stays_on_loopback(tmp_path):
    manifest = open_manifest(Fleet(), tmp_path / "run")
    line = " ".join(fleet_components(manifest)[0].argv)
    assert f"--db-filename {manifest.run_dir}/temporal.db" in line
    assert "--ip 127.0.0.1" in line
    assert line.count("=Keyword") == 4


def test_with_the_user_s_own_temporal_no_server_is_started(tmp_path, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "agents")
    manifest = open_manifest(Fleet(temporal="environment"), tmp_path / "run")
    assert (manifest.temporal_address, manifest.temporal_namespace) == ("temporal.example:7233", "agents")
    assert "temporal" not in [spec.name for spec in fleet_components(manifest)]
