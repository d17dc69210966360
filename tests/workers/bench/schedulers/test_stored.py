"""What a comparison leaves behind, also when it is broken off, and what is made of it later."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from infra.simulator.recorded import RecordedRun
from tests.workers.bench.schedulers.test_report import measured
from workers.bench.schedulers import compare
from workers.bench.schedulers.compare import PARTS, again
from workers.bench.schedulers.prediction import planned
from workers.bench.schedulers.run import Contestant, Ran, Told, sha256_of
from workers.bench.schedulers.workload import Workload
from workers.cli.bench_schedulers import bench
from workflows.messages.errors import InvalidInput, Transient

PART = PARTS["heavy-tailed"]
SECONDS = {"waterlevel": 100.0, "async": 140.0}


@pytest.fixture(autouse=True)
def _no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are over at once; colocate's is broken off. What the simulator is fed with is the plan."""

    async def run_one(workload: Workload, contestant: Contestant, folder: Path, told: Told) -> Ran:
        folder.mkdir(parents=True)
        if contestant.label == "colocate":
            raise Transient("broken off")
        done = measured(
            contestant.label,
            SECONDS[contestant.label],
            workload.seed,
            workload=workload.name,
            split=contestant.policy.split,
            slower=workload.slower,
            workload_sha256=sha256_of(workload),
        )
        return Ran(done, reference(folder))

    def reference(_place: Path) -> RecordedRun:
        scenario, works = planned(compare._workloads(PART, [0])[0])
        return RecordedRun(scenario, works, 98.0, 12)

    monkeypatch.setattr(compare, "run_one", run_one)
    monkeypatch.setattr(compare, "recorded", reference)


async def broken_off(folder: Path) -> None:
    with pytest.raises(Transient):
        await compare.compare(
            PART, folder, lambda _: None, policies=["waterlevel", "async", "colocate"], seeds=[0], split=6
        )


async def test_a_comparison_that_is_broken_off_keeps_what_was_measured(tmp_path: Path) -> None:
    await broken_off(tmp_path)
    result = again(PART, tmp_path)
    assert [(row["label"], row["seconds"], row["ratio"]) for row in result["rows"]] == [
        ("waterlevel", 100.0, 1.0),
        ("async", 140.0, 1.4),
    ]
    assert all(row["simulated"] > 0 for row in result["rows"])
    # The report so far was written as it came.
    assert json.loads((tmp_path / "heavy-tailed.json").read_text()) == result


async def test_the_report_is_of_the_runs_asked_for(tmp_path: Path) -> None:
    await broken_off(tmp_path)
    (row,) = again(PART, tmp_path, policies=["async"], seeds=[0])["rows"]
    assert (row["label"], row["ratio"]) == ("async", None)
    assert row["simulated"] > 0  # from the records of the policy under test, which lie there
    for policies, seeds in ((["colocate"], []), ([], [1])):
        with pytest.raises(InvalidInput, match="no finished run"):
            again(PART, tmp_path, policies=policies, seeds=seeds)
    with pytest.raises(InvalidInput, match="none of"):
        again(PART, tmp_path, policies=["lottery"])


async def test_a_stretched_comparison_says_so(tmp_path: Path) -> None:
    """By how much; and what is no factor is refused before anything is run."""
    told = await compare.compare(PART, tmp_path, lambda _: None, policies=["waterlevel"], seeds=[0], slower=4)
    assert [row["name"] for row in told["rows"]] == ["heavy-tailed, 4 times as slow, seed 0: waterlevel"]
    assert again(PART, tmp_path) == told
    for factor in (0, -1, 1000, float("nan")):
        with pytest.raises(InvalidInput, match="times as long"):
            await compare.compare(PART, tmp_path / "none", lambda _: None, policies=["waterlevel"], slower=factor)
    assert not any((tmp_path / "none").glob("*"))


@pytest.mark.parametrize("unreadable", ["waterlevel", "async"])
async def test_a_run_that_cannot_be_read_breaks_no_comparison(
    unreadable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row says why; all are run, and what was measured is judged. No bar of predictions is met without one."""
    whole = compare.recorded

    def recorded(place: Path) -> RecordedRun:
        if place.name == unreadable:
            raise OSError("disk is gone")
        return whole(place)

    monkeypatch.setattr(compare, "recorded", recorded)
    told = await compare.compare(
        PART, tmp_path, lambda _: None, policies=["waterlevel", "async"], seeds=[0], split=6, resume=False
    )
    rows = {row["label"]: row for row in told["rows"]}
    assert [row["seconds"] for row in rows.values()] == [100.0, 140.0]
    assert "its records cannot be read: OSError: disk is gone" in rows[unreadable]["remark"]
    predictions = [bar for bar in told["bars"] if bar["name"] == "largest error of a prediction"]
    if unreadable == PART.subject:  # every prediction is made from it
        assert all(row["simulated"] is None and "no prediction: OSError" in row["remark"] for row in rows.values())
        assert [(bar["value"], bar["met"]) for bar in predictions] == [("none could be made", None)]
    else:
        assert all(row["simulated"] > 0 for row in rows.values())
        assert rows["waterlevel"]["remark"] == ""
    assert json.loads((tmp_path / "heavy-tailed.json").read_text()) == told


async def test_a_simulator_that_fails_is_remarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_) -> float:
        raise ZeroDivisionError("no cell")

    monkeypatch.setattr(compare, "predicted_seconds", fails)
    told = await compare.compare(PART, tmp_path, lambda _: None, policies=["waterlevel"], seeds=[0])
    (row,) = told["rows"]
    assert (row["simulated"], row["remark"]) == (None, "no prediction: ZeroDivisionError: no cell")


async def test_where_nothing_was_kept_nothing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no finished run"):
        again(PART, tmp_path / "absent")


def test_a_control_plane_that_was_behind_is_remarked() -> None:
    scenario, works = planned(compare._workloads(PART, [0])[0])
    engines = scenario.engines.model_copy(update={"backlog_seconds": 87.0})
    behind = RecordedRun(scenario.model_copy(update={"engines": engines}), works, 98.0, 12)
    assert "first 87 s" in compare.remark_of(behind)
    assert compare.remark_of(RecordedRun(scenario, works, 98.0, 12)) == ""


def test_the_command_reports_from_what_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(broken_off(tmp_path))
    bench("heavy-tailed", from_=tmp_path, json_=True)
    told = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in told["rows"]] == ["waterlevel", "async"]
    bench("heavy-tailed", from_=tmp_path)
    assert "equal E[d]" in capsys.readouterr().out
    refused: list[dict[str, Any]] = [{"resume": True}, {"out": tmp_path}, {"split": 2}, {"slower": 2.0}]
    for changes in refused:
        with pytest.raises(InvalidInput, match="have no meaning"):
            bench("heavy-tailed", from_=tmp_path, **changes)
