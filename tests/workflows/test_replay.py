"""Saved histories of every workflow replay with today's code; a change that breaks running workflows fails here.

Then give the change a `workflow.patched`, or, while nobody runs the old code, record anew: `tests/workflows/record.py`.
"""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from tests.workflows.record import WANTED, has
from workers.control.worker import FAILURES, WORKFLOWS, workflow_runner

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def load(path: Path) -> WorkflowHistory:
    saved = json.loads(path.read_text())
    return WorkflowHistory.from_json(saved["id"], saved["history"])


def replayer() -> Replayer:
    return Replayer(
        workflows=WORKFLOWS,
        workflow_runner=workflow_runner(),
        workflow_failure_exception_types=FAILURES,
        data_converter=pydantic_data_converter,
    )


def test_every_workflow_has_histories():
    assert sorted(path.stem for path in HISTORIES) == sorted(WANTED)
    for path in HISTORIES:
        assert all(has(load(path), event) for event in WANTED[path.stem][1])


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_saved_history_replays(path: Path):
    await replayer().replay_workflow(load(path))


async def test_a_changed_history_does_not_replay():
    """The replay can fail: another activity in the place of the first one is noticed."""
    path = next(path for path in HISTORIES if path.stem == "execution")
    saved = json.loads(path.read_text())
    text = json.dumps(saved["history"]).replace("prepare_workspace", "evaluate_workspace", 1)
    with pytest.raises(Exception, match=r"(?i)nondeterminism|activity type"):
        await replayer().replay_workflow(WorkflowHistory.from_json(saved["id"], text))
