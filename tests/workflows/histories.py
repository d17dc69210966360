"""Histories of workflows: fetched, measured, looked through."""

from collections import Counter

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory

SLOW = "[TMPRL1101]"
"""What the SDK's message begins with when a workflow task takes long."""


async def histories_of(client: Client, run: str) -> list[tuple[str, WorkflowHistory]]:
    """(workflow type, history) of every run of every workflow of this run of ours."""
    found: list[tuple[str, WorkflowHistory]] = []
    async for execution in client.list_workflows(f"WorkflowId STARTS_WITH '{run}/'"):
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        found.append((execution.workflow_type, await handle.fetch_history()))
    return found


def broken_tasks(history: WorkflowHistory) -> list[str]:
    """Why workflow tasks failed: a nondeterminism error or a bug. An event that came in between is no fault, nor is a
    machine so busy that a task was not through in two seconds: it is given out again."""
    harmless = {
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    }
    failed = [
        event.workflow_task_failed_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    messages = [failure.failure.message for failure in failed if failure.cause not in harmless]
    return [message for message in messages if not message.startswith(SLOW)]


def has(history: WorkflowHistory, kind: "EventType.ValueType") -> bool:
    return any(event.event_type == kind for event in history.events)


def largest(history: WorkflowHistory) -> HistoryEvent:
    return max(history.events, key=lambda event: event.ByteSize())


def signals_at_once(history: WorkflowHistory) -> int:
    """How many signals to one and the same other workflow were under way at the same time, at most."""
    most, under_way = 0, Counter[str]()
    for event in history.events:
        match event.event_type:
            case EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED:
                begun = event.signal_external_workflow_execution_initiated_event_attributes
                under_way[begun.workflow_execution.workflow_id] += 1
            case EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED:
                told = event.external_workflow_execution_signaled_event_attributes
                under_way[told.workflow_execution.workflow_id] -= 1
            case EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED:
                failed = event.signal_external_workflow_execution_failed_event_attributes
                under_way[failed.workflow_execution.workflow_id] -= 1
            case _:
                continue
        most = max(most, *under_way.values())
    return most
