"""`gyre checkpoints list | verify | export` on a run folder with real checkpoints of a tiny policy."""

import json
from pathlib import Path

import pytest
import torch
from sqlalchemy import insert, update

from infra.checkpoints import CheckpointMeta, CheckpointStore
from infra.checkpoints.contents import write_contents
from infra.records import schema
from infra.records.database import open_database
from infra.settings.fleet import Fleet
from infra.weights.checksum import weights_checksum
from infra.weights.folder import folder_checksum, load_weights
from tests.workers.cell.training.material import write_policy
from workers.cli.app import main
from workers.supervisor.run_folder import open_manifest
from workflows.messages.batch_ledger import BatchLedger, LedgerEntry


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "p")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    open_manifest(Fleet(run="r"), tmp_path / "run")
    return tmp_path / "run"


def save(folder: Path, policy: Path, version: int) -> str:
    """One checkpoint of `version`; returns its name."""
    weights = {name: tensor + version for name, tensor in load_weights(policy).items()}
    moments = {f"{moment}/{name}": one.clone() for moment in ("exp_avg", "exp_avg_sq") for name, one in weights.items()}
    meta = CheckpointMeta(
        version=version,
        checksum=weights_checksum(weights),
        optimizer_steps=version,
        code_version="0123456789abcdef",
        counters={"dispatched": 24, "position/demo": 6},
        ledger=BatchLedger(
            batch=f"r/batch/first/{version - 1}",
            version_before=version - 1,
            groups=("first/0",),
            micro_steps=(
                LedgerEntry(micro_step=0, attempt=1, cell=0, boot_epoch=1),
                LedgerEntry(micro_step=1, attempt=1, cell=2, boot_epoch=1),
            ),
            valid_executions=4,
            gradient_norm=0.5,
            gradient_checksum="g",
        ),
    )
    random = {"torch": torch.get_rng_state()}
    store = CheckpointStore(folder / "checkpoints")
    return store.write(meta, lambda to: write_contents(to, weights, moments, random, policy)).folder.name


@pytest.fixture
def run_dir(folder: Path, policy: Path) -> Path:
    """Versions 1 and 2, the second not committed."""
    CheckpointStore(folder / "checkpoints").commit(save(folder, policy, 1))
    save(folder, policy, 2)
    return folder


def gyre(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoints", *map(str, arguments)])
    return ended.value.code if isinstance(ended.value.code, int) else 0


def words(text: str) -> str:
    return " ".join(text.split())


class TestList:
    def test_a_table_shows_what_each_binds(self, run_dir: Path, capsys, monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "240")
        assert gyre("list", run_dir) == 0
        shown = capsys.readouterr().out
        for part in (
            "v00000001-a0001",
            "r/batch/first/1",
            "2 micro-steps (cells 0, 2), V 4",
            "demo: 6",
            "0123456789ab",
        ):
            assert part in shown
        assert (shown.count("not committed"), shown.count("committed")) == (1, 2)

    def test_json_holds_everything(self, run_dir: Path, capsys) -> None:
        gyre("list", run_dir, "--json")
        listed = json.loads(capsys.readouterr().out)
        assert (listed["run"], listed["committed"], listed["broken"]) == ("r", "v00000001-a0001", {})
        first, second = listed["checkpoints"]
        assert (first["version"], first["state"], second["state"]) == (1, "committed", "not committed")
        assert second["ledger"]["micro_steps"][1] == {"micro_step": 1, "attempt": 1, "cell": 2, "boot_epoch": 1}
        assert second["counters"] == {"dispatched": 24, "position/demo": 6}
        assert "optimizer.state" in second["files"]

    def test_a_run_without_any_says_so(self, folder: Path, capsys) -> None:
        assert gyre("list", folder) == 0
        assert "no checkpoint yet" in capsys.readouterr().out

    def test_what_cannot_be_used_is_shown(self, run_dir: Path, capsys) -> None:
        (run_dir / "checkpoints" / "v00000002-a0001" / "MANIFEST.json").unlink()
        (run_dir / "checkpoints" / "COMMITTED").write_text("v00000001-a0001 0\n")
        gyre("list", run_dir)
        shown = words(capsys.readouterr().out)
        assert "not usable: v00000002-a0001: MANIFEST.json is missing" in shown
        assert "damaged: COMMITTED does not fit v00000001-a0001" in shown


class TestVerify:
    def test_a_whole_run(self, run_dir: Path, capsys) -> None:
        assert gyre("verify", run_dir) == 0
        assert capsys.readouterr().out.count("whole") == 2
        assert gyre("verify", run_dir, 2, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["ok"], found["checkpoints"]) == (True, {"v00000002-a0001": []})

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.state", "random.state", "MANIFEST.sha256"])
    def test_damage_is_named(self, run_dir: Path, name: str, capsys) -> None:
        path = run_dir / "checkpoints" / "v00000002-a0001" / name
        blob = bytearray(path.read_bytes())
        blob[-9] ^= 4
        path.write_bytes(bytes(blob))
        for version in ((), (2,)):
            assert gyre("verify", run_dir, *version) == 1
            assert name in words(capsys.readouterr().out)
        assert gyre("verify", run_dir, 1) == 0

    def test_a_ledger_that_the_records_contradict_is_named(self, run_dir: Path, capsys) -> None:
        engine = open_database(open_manifest(Fleet(run="r"), run_dir).database_url, create=True)
        checksum = json.loads((run_dir / "checkpoints/v00000001-a0001/MANIFEST.json").read_text())["meta"]["checksum"]
        accepted = [{"index": index, "attempt": 1, "cell": cell, "boot_epoch": 1} for index, cell in ((1, 2), (0, 0))]
        batch = {"batch": "r/batch/first/0", "run": "r", "burst": "first", "step": 0, "opened_at": 0.0}
        values = {"version_before": 0, "groups": ["first/0"], "accepted": accepted, "normalizer": 4}
        version = {"version": 1, "batch": batch["batch"], "checksum": checksum, "checkpoint": "v00000001-a0001"}
        with engine.begin() as connection:
            connection.execute(insert(schema.batches).values(**batch, **values, gradient_checksum="g"))
            connection.execute(insert(schema.updates).values(**version, committed_at=1.0))
        assert gyre("verify", run_dir, 1) == 0
        with engine.begin() as connection:
            connection.execute(update(schema.batches).values(accepted=accepted[:1], normalizer=3))
        capsys.readouterr()
        assert gyre("verify", run_dir, 1, "--json") == 1
        (damages,) = json.loads(capsys.readouterr().out)["checkpoints"].values()
        assert [damage["fault"] for damage in damages] == [
            f"has another {name} than the batch recorded" for name in ("micro_steps", "valid_executions")
        ]
        engine.dispose()


class TestExport:
    def test_a_folder_with_exactly_that_version(self, run_dir: Path, policy: Path, tmp_path: Path, capsys) -> None:
        assert gyre("export", run_dir, 1, tmp_path / "out", "--json") == 0
        origin = json.loads(capsys.readouterr().out)
        assert origin["checksum"] == folder_checksum(tmp_path / "out")
        assert (origin["run"], origin["version"], origin["dtype"]) == ("r", 1, "float32")
        assert gyre("export", run_dir, 2, tmp_path / "two", "--dtype", "bfloat16") == 0
        assert "version 2 (not committed) of run r as bfloat16" in words(capsys.readouterr().out)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("nowhere", 1, "out"), "RUN: nowhere is neither a run folder nor the name of a run"),
            (("RUN", 7, "out"), "VERSION: no usable checkpoint of version 7; there are 1, 2"),
            (("RUN", 0, "out"), "VERSION: version 0 is the run's base model"),
            (("RUN", 1, "RUN"), "exists already"),
        ],
    )
    def test_what_is_wrong_is_named(self, run_dir: Path, tmp_path: Path, arguments, says: str, capsys) -> None:
        given = [run_dir if one == "RUN" else tmp_path / one if one == "out" else one for one in arguments]
        assert gyre("export", *given) == 2
        assert says in words(capsys.readouterr().err)
        assert not (tmp_path / "out").exists()

    def test_verify_and_list_name_the_field_too(self, run_dir: Path, capsys) -> None:
        assert gyre("verify", run_dir, 7) == 2
        assert "VERSION: no usable checkpoint of version 7" in words(capsys.readouterr().err)
        assert gyre("list", "nowhere") == 2
        assert "RUN: nowhere" in words(capsys.readouterr().err)
