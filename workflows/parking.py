"""Calling a step, and what happens when it fails for good: the workflow parks and an operator decides.

A transient failure is retried by the step's own policy and shows as pending in the web UI. A permanent one (typed and
non-retryable, or attempts used up) parks the workflow in phase BLOCKED; `set_current_details` then shows the exact
command, and the update `resolve_step` (retry, skip, abort) goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError

from workflows.commands import resume_command
from workflows.messages.base import Message
from workflows.messages.transition import Resolution
from workflows.steps import Step

Argument = TypeVar("Argument", bound=Message)
Result = TypeVar("Result", bound=Message | None)

PHASE = SearchAttributeKey.for_keyword("Phase")


class StepSkipped(Exception):
    """An operator skipped the step; the caller decides what that means."""


class StepAborted(Exception):
    """An operator gave the step up, or the caller does not park: the workflow takes its way back."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step, self.reason = step, reason


@dataclass
class _Blocked:
    step: str
    reason: str
    phase_before: str
    resolution: Resolution | None = None


def first_number() -> int:
    """Where a workflow that begins anew counts from: its start in milliseconds, above all that an earlier life counted
    to. What is named with such a number is never named twice, although the earlier life's count is lost."""
    return int(workflow.info().workflow_start_time.timestamp() * 1000)


def failure_text(error: BaseException) -> str:
    """The innermost cause of an activity failure, cut to what a web page shows well."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    kind, text = getattr(cause, "type", None) or type(cause).__name__, getattr(cause, "message", None) or str(cause)
    return f"{kind}: {text}"[:500]


def call(
    step: Step[Argument, Result],
    argument: Argument,
    *,
    queue: str,
    activity_id: str | None = None,
    summary: str = "",
    give_up_seconds: float | None = None,
) -> Awaitable[Result]:
    """Schedule a step on `queue`; awaiting it raises ActivityError when it fails for good.

    `give_up_seconds` bounds all attempts together.
    """
    handle = workflow.start_activity(
        step.name,
        argument,
        task_queue=queue,
        result_type=step.result,
        activity_id=activity_id,
        summary=summary or step.name.replace("_", " "),
        start_to_close_timeout=timedelta(seconds=step.start_to_close),
        schedule_to_start_timeout=_seconds(step.schedule_to_start),
        schedule_to_close_timeout=_seconds(give_up_seconds),
        heartbeat_timeout=_seconds(step.heartbeat),
        retry_policy=step.retry_policy(),
        cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
    )
    return cast("Awaitable[Result]", handle)


class Parking:
    """Mixin of every workflow that runs steps: parks on a failure for good, resumes by update."""

    _blocked: tuple[_Blocked, ...] = ()
    _phase: str = ""
    _overview: str = ""

    @workflow.update
    async def resolve_step(self, resolution: Resolution) -> str:
        """Decide about the (oldest) step that failed for good: retry it, skip it, or abort the job it belongs to."""
        blocked = self._undecided()[0]
        blocked.resolution = resolution
        return f"{blocked.step}: {resolution.value}"

    @resolve_step.validator
    def _check_resolution(self, resolution: Resolution) -> None:
        if not self._undecided():
            raise ApplicationError("no step is blocked here", type="NothingBlocked", non_retryable=True)

    @workflow.query
    def blocked_steps(self) -> list[str]:
        """The steps that wait for `resolve_step` and why, oldest first."""
        return [f"{blocked.step}: {blocked.reason}" for blocked in self._blocked]

    def _undecided(self) -> list[_Blocked]:
        return [blocked for blocked in self._blocked if blocked.resolution is None]

    def enter_phase(self, phase: str) -> None:
        """Show a phase in the web UI; upserted only when it changes."""
        if phase != self._phase:
            self._phase = phase
            upsert(PHASE.value_set(phase))

    def show(self, overview: str) -> None:
        """Show how things stand in the web UI (Markdown), below whatever is blocked; set only when it has changed."""
        if overview != self._overview:
            self._overview = overview
            self._show_details()

    async def parked_call(
        self,
        step: Step[Argument, Result],
        argument: Argument,
        *,
        queue: str,
        activity_id: str | None = None,
        summary: str = "",
    ) -> Result:
        """Call a step; when it fails for good, park until an operator decides.

        Raises StepSkipped or StepAborted by that decision; cancellation passes through.
        """
        while True:
            try:
                return await call(step, argument, queue=queue, activity_id=activity_id, summary=summary)
            except ActivityError as error:
                if isinstance(error.cause, CancelledError):
                    raise
                match await self.park(step.name, failure_text(error)):
                    case Resolution.RETRY:
                        continue
                    case Resolution.SKIP:
                        raise StepSkipped(step.name) from error
                    case _:
                        raise StepAborted(step.name, failure_text(error)) from error

    async def park(self, step: str, reason: str, interrupted: Callable[[], bool] = lambda: False) -> Resolution | None:
        """Wait in phase BLOCKED for an operator's decision; None when `interrupted` comes true first."""
        blocked = _Blocked(step, reason, self._phase if not self._blocked else self._blocked[0].phase_before)
        self._blocked = (*self._blocked, blocked)
        self.enter_phase("BLOCKED")
        self._show_details()
        try:
            await workflow.wait_condition(lambda: blocked.resolution is not None or interrupted())
        finally:
            self._blocked = tuple(other for other in self._blocked if other is not blocked)
            self._show_details()
            if not self._blocked:
                self.enter_phase(blocked.phase_before)
        return blocked.resolution

    def _show_details(self) -> None:
        """The details in the web UI: what failed and the exact command to go on, then how things stand."""
        parts = [self._overview] if self._overview else []
        if self._blocked:
            blocked, command = self._blocked[0], resume_command(workflow.info().workflow_id)
            parts.insert(
                0,
                f"**{blocked.step}** failed for good: {blocked.reason}\n\nTo go on:\n\n    {command}\n\n"
                'or `"skip"`, `"abort"` in the place of `"retry"`.',
            )
        workflow.set_current_details("\n\n".join(parts))


def stop_if_cancelled() -> None:
    """Raise the cancellation that has been asked for. An await that cannot be undone (a signal on its way to another
    workflow) swallows it, so this stands behind each of them on a workflow's main way."""
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError


def upsert(*updates: SearchAttributeUpdate[str]) -> None:
    """Upsert search attributes (typed; the SDK's own signature is only partly)."""
    workflow.upsert_search_attributes(list(updates))  # pyright: ignore[reportUnknownMemberType]


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)
