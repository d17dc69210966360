"""Arguments and results of the light steps on the control queue."""

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.execution import EndReason, ExecutionSpec, Outcome


class LaunchExecutions(Message):
    """Start these AgentExecution workflows by their fixed ids; one that already exists counts as started."""

    executions: tuple[ExecutionSpec, ...]


class SweepRoster(Message):
    """Describe these execution workflows."""

    executions: tuple[str, ...]


class ExecutionFate(Message):
    """An execution workflow that is no longer open though it never reported, and what the records know of it."""

    execution: str
    status: str
    end: EndReason
    outcome: Outcome
    reward: float | None = None
    target_tokens: int = 0


class SweptRoster(Message):
    closed: tuple[ExecutionFate, ...]


class CancelExecutions(Message):
    """Ask these execution workflows to cancel; unknown ones are ignored."""

    executions: tuple[str, ...]
    reason: str


class LedgerEntry(Message):
    """One decision, refusal or event. `token` makes the insert idempotent."""

    run: str
    at: float
    kind: str = Field(description="move, refuse, stay, return, dispatch, publish, close, alarm")
    cell: int | None = None
    reasons: tuple[str, ...]
    state: dict[str, object] = {}
    token: str


class RecordPublished(Message):
    """Every cell that serves has verified this version."""

    run: str
    version: int


class RecordLedger(Message):
    entries: tuple[LedgerEntry, ...]
