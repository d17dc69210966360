"""What a cell's role change is at: asked of Temporal, which knows what no workflow can say while a step is out."""

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workflows.messages import ids
from workflows.messages.control import FoundSteps, OpenStep

_FAILURE_CHARACTERS = 200


async def open_steps(client: Client, run: str, cells: tuple[int, ...]) -> FoundSteps:
    """The steps that are out in the role changes of these cells; a cell without a workflow has none."""
    found: list[OpenStep] = []
    for cell in cells:
        role_changes = (await _described(client, ids.cell_workflow_id(run, cell))).pending_children
        for child in role_changes:
            pending = (await _described(client, child.workflow_id)).pending_activities
            found += [_open_step(cell, activity) for activity in pending]
    return FoundSteps(steps=tuple(found))


async def _described(client: Client, workflow_id: str) -> DescribeWorkflowExecutionResponse:
    """What Temporal says of a workflow; of one that is not there nothing is pending."""
    try:
        return (await client.get_workflow_handle(workflow_id).describe()).raw_description
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return DescribeWorkflowExecutionResponse()


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
