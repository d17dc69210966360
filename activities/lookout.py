"""What a cell's role change is at: asked of Temporal, which knows what no workflow can say while a step is out."""

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workflows.messages import ids
from workflows.messages.control import FoundSteps, OpenStep

_FAILURE_CHARACTERS = 200


async def open_steps(client: Client, run: str, cells: tuple[int, ...]) -> FoundSteps:
    """The steps that are out in the role changes of these cells; a cell without a workflow has none."""
    found: list[OpenStep] = []
    for cell in cells:
        workflow_id = ids.cell_workflow_id(run, cell)
        for child in await _children(client, workflow_id):
            found += [_open_step(cell, pending) for pending in await _activities(client, child)]
    return FoundSteps(steps=tuple(found))


async def _children(client: Client, workflow_id: str) -> list[str]:
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return []
    return [child.workflow_id for child in description.raw_description.pending_children]


async def _activities(client: Client, workflow_id: str) -> list[PendingActivityInfo]:
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return []
    return list(description.raw_description.pending_activities)


def _open_step(cell: int, pending: PendingActivityInfo) -> OpenStep:
    """`since`: its attempt began, or, where no worker has taken it, was to begin."""
    failure = pending.last_failure
    kind = failure.application_failure_info.type
    runs = pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    since = pending.last_started_time if runs else pending.scheduled_time
    return OpenStep(
        cell=cell,
        step=pending.activity_type.name,
        attempt=pending.attempt,
        since=since.seconds + since.nanos / 1e9,
        runs=runs,
        failure=": ".join(filter(None, (kind, failure.message)))[:_FAILURE_CHARACTERS],
    )
