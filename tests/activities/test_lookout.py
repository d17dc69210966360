"""What a cell's role change is at, as Temporal describes it."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.service import RPCError, RPCStatusCode

from activities.lookout import open_steps
from workflows.messages import ids
from workflows.messages.control import OpenStep

STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
CHANGE = "r/transition/cell-1/7"


def pending(step: str, state: Any, *, started: int = 0, scheduled: int = 0, failure: str = "") -> PendingActivityInfo:
    info = PendingActivityInfo(state=state, attempt=2)
    info.activity_type.name = step
    info.last_started_time.seconds, info.scheduled_time.seconds = started, scheduled
    if failure:
        info.last_failure.message, info.last_failure.application_failure_info.type = failure, "Fenced"
    return info


class FakeClient:
    """Describes what it was given; of everything else it says as Temporal does that there is none."""

    def __init__(self, described: dict[str, Any], status: RPCStatusCode = RPCStatusCode.NOT_FOUND) -> None:
        self.described, self.status = described, status

    def get_workflow_handle(self, name: str) -> Any:
        async def describe() -> Any:
            if name not in self.described:
                raise RPCError("no such workflow", self.status, b"")
            return SimpleNamespace(raw_description=self.described[name])

        return SimpleNamespace(describe=describe)


def cell_with(*children: str) -> Any:
    return SimpleNamespace(pending_children=[SimpleNamespace(workflow_id=child) for child in children])


async def test_the_open_steps_of_its_role_change_are_found() -> None:
    activities = [
        pending("take_core", STARTED, started=100, scheduled=90, failure="no"),
        pending("change_door", SCHEDULED, started=80, scheduled=120),
    ]
    described = {
        ids.cell_workflow_id("r", 1): cell_with(CHANGE),
        ids.cell_workflow_id("r", 2): cell_with(),
        CHANGE: SimpleNamespace(pending_activities=activities),
    }
    client: Any = FakeClient(described)
    found = await open_steps(client, "r", (1, 2, 3))
    assert found.steps == (
        OpenStep(cell=1, step="take_core", attempt=2, since=100.0, runs=True, failure="Fenced: no"),
        OpenStep(cell=1, step="change_door", attempt=2, since=120.0, runs=False),
    )


async def test_what_ends_meanwhile_has_no_step() -> None:
    client: Any = FakeClient({ids.cell_workflow_id("r", 1): cell_with(CHANGE)})
    assert (await open_steps(client, "r", (1,))).steps == ()


async def test_a_temporal_that_is_away_is_asked_again() -> None:
    client: Any = FakeClient({}, RPCStatusCode.UNAVAILABLE)
    with pytest.raises(RPCError):
        await open_steps(client, "r", (1,))
