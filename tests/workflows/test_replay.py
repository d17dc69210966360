"""Saved histories of every workflow replay with today's code; a change that breaks running workflows fails here.

Then give the change a patch (workflows/patches.py), or, of what no release has done yet, record anew:
`tests/workflows/record.py`. Histories of a release cannot be recorded anew; for them there is the patch alone.
"""

import json

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from tests.workflows import saved
from tests.workflows.record import ROOT, WANTED, has
from workers.control.worker import FAILURES, WORKFLOWS, workflow_runner

TODAY = saved.of_today()
RELEASES = saved.of_releases()


def replayer() -> Replayer:
    return Replayer(
        workflows=WORKFLOWS,
        workflow_runner=workflow_runner(),
        workflow_failure_exception_types=FAILURES,
        data_converter=pydantic_data_converter,
    )


async def replay(text: str) -> None:
    await replayer().replay_workflow(saved.history_of(text))


def test_every_workflow_has_histories():
    assert sorted(TODAY) == sorted(WANTED)
    for name, text in TODAY.items():
        assert all(has(saved.history_of(text), event) for event in WANTED[name][1])


@pytest.mark.parametrize("name", TODAY)
async def test_a_saved_history_replays(name: str):
    await replay(TODAY[name])


async def test_a_changed_history_does_not_replay():
    """The replay can fail: another activity in the place of the first one is noticed."""
    other = TODAY["execution"].replace("prepare_workspace", "evaluate_workspace", 1)
    with pytest.raises(Exception, match=r"(?i)nondeterminism|activity type"):
        await replay(other)


async def test_what_releases_have_recorded_replays():
    for version, texts in RELEASES.items():
        for name, text in texts.items():
            try:
                await replay(text)
            except Exception as error:
                raise AssertionError(f"{name} of release {version}: the change needs a patch") from error


async def test_the_histories_of_a_release_are_kept_small_and_whole(tmp_path):
    few = {name: TODAY[name] for name in ("execution", "scheduler-roll-over", "cell-update")}
    path = saved.keep("0.2.0", few, tmp_path / "released")
    assert path.stat().st_size < sum(map(len, few.values())) / 4
    kept = saved.unpack(path.read_bytes())
    assert {name: json.loads(text) for name, text in kept.items()} == {
        name: json.loads(text) for name, text in few.items()
    }
    await replay(kept["execution"])
    with pytest.raises(FileExistsError):
        saved.keep("0.2.0", {}, tmp_path / "released")


def test_the_newest_release_has_its_histories():
    assert saved.unkept((ROOT / "CHANGELOG.md").read_text(), set(RELEASES)) is None
    log = "# Changes\n\n## Unreleased\n- x\n\n## 0.3.0\n- y\n\n## 0.2.0\n- z\n"
    assert saved.unkept(log, {"0.2.0"}) == "0.3.0"
    assert saved.unkept(log, {"0.3.0"}) is None
    assert saved.unkept("# Changes\n\n## Unreleased\n- x\n", set()) is None


@pytest.mark.parametrize("version", ["today", *RELEASES])
def test_what_workflows_have_carried_over_is_read(version: str):
    texts = TODAY if version == "today" else RELEASES[version]
    states = [found for text in texts.values() for found in saved.carried_in(text)]
    assert {kind for kind, _ in states} == set(saved.CARRIED.values())
    for kind, raw in states:
        state = kind.model_validate_json(raw)
        assert state.format == kind.newest()
        assert kind.model_validate_json(state.model_dump_json()) == state
