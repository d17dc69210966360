"""AgentExecution: prepare, run the harness, evaluate, process, close once.

Whatever happens, an execution reports to the Scheduler exactly one `ExecutionClosed`; the Scheduler counts it by its
id. Nothing here waits without a limit: the wall limit also holds when the harness host is gone.
"""

import asyncio
from asyncio import CancelledError

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, RetryState, is_cancelled_exception

from workflows import steps
from workflows.messages import ids
from workflows.messages.execution import (
    EndReason,
    Evaluation,
    ExecutionClosed,
    ExecutionSpec,
    FinishExecution,
    HarnessRun,
    Outcome,
)
from workflows.messages.transition import Resolution
from workflows.parking import Parking, call, failure_text, upsert

BURST = SearchAttributeKey.for_keyword("Burst")

HOST_GRACE_SECONDS = 120.0
"""How long beyond its own limit a step may stay unanswered (host restarting) before the execution goes on without."""
PREPARE_SECONDS = 900.0
"""All attempts to prepare, with the wait for a busy or restarting host."""


@workflow.defn
class AgentExecution(Parking):
    """One harness run on one task."""

    @workflow.init
    def __init__(self, spec: ExecutionSpec) -> None:
        self.spec = spec
        self.run_result = HarnessRun(end=EndReason.NEVER_RAN)
        self.evaluation = Evaluation(outcome=Outcome.NO_ARTIFACT)
        self.target_tokens = 0

    @workflow.run
    async def run(self, spec: ExecutionSpec) -> ExecutionClosed:
        upsert(BURST.value_set(spec.burst))
        started = workflow.time()
        try:
            await self._live()
        except (CancelledError, ActivityError) as error:
            if not is_cancelled_exception(error):
                raise
            self.run_result = self.run_result.model_copy(update={"end": EndReason.CANCELLED})
            self.evaluation = Evaluation(outcome=Outcome.NO_ARTIFACT, detail="cancelled")
        closing = asyncio.create_task(self._close(workflow.time() - started))
        try:
            return await asyncio.shield(closing)
        except CancelledError:
            return await closing  # it has come to its end already: that is recorded and reported all the same

    async def _live(self) -> None:
        self.enter_phase("PREPARE")
        harness = ids.harness_queue(self.spec.run)
        try:
            prepared = await call(steps.PREPARE_WORKSPACE, self.spec, queue=harness, give_up_seconds=PREPARE_SECONDS)
            ran = prepared.prepared
            self.evaluation = Evaluation(outcome=Outcome.NO_ARTIFACT, detail=prepared.reason[:500])
        except ActivityError as error:
            self._never_ran(error)
            ran = False
        if ran:
            self.enter_phase("RUN")
            await self._run_harness()
            self.enter_phase("EVALUATE")
            await self._evaluate(harness)
        if self.evaluation.outcome is Outcome.NO_ARTIFACT and self.spec.no_artifact == "zero":
            self.evaluation = Evaluation(outcome=Outcome.SCORED, reward=0.0, detail=self.evaluation.detail)
        elif not ran:
            return
        self.enter_phase("PROCESS")
        await self._process(harness)

    async def _run_harness(self) -> None:
        limits = self.spec.limits
        limit = limits.wall_seconds + limits.grace_seconds + HOST_GRACE_SECONDS
        try:
            self.run_result = await call(
                steps.RUN_HARNESS,
                self.spec,
                queue=ids.watch_queue(self.spec.run),
                summary=f"{self.spec.harness.name} on {self.spec.task.rsplit('/', 1)[-1]}",
                give_up_seconds=limit,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            # No answer in time, or the harness cannot be started: what is left in the workspace is scored.
            self.run_result = HarnessRun(end=EndReason.CRASHED, detail=failure_text(error))

    async def _evaluate(self, queue: str) -> None:
        limits = self.spec.limits
        limit = limits.evaluator_attempts * (limits.evaluator_seconds + 10) + HOST_GRACE_SECONDS
        try:
            self.evaluation = await call(steps.EVALUATE_WORKSPACE, self.spec, queue=queue, give_up_seconds=limit)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self.evaluation = Evaluation(outcome=Outcome.EVALUATOR_FAILED, detail=failure_text(error))

    async def _process(self, queue: str) -> None:
        """Records become a trajectory. Parks when that cannot work; a host that is gone is not waited for."""
        limit = steps.PROCESS_EXECUTION.start_to_close + HOST_GRACE_SECONDS
        while True:
            try:
                processed = await call(steps.PROCESS_EXECUTION, self.spec, queue=queue, give_up_seconds=limit)
                self.target_tokens = processed.target_tokens
                return
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                reason = failure_text(error)
                final = error.retry_state is RetryState.NON_RETRYABLE_FAILURE
            if final and await self.park(steps.PROCESS_EXECUTION.name, reason) is Resolution.RETRY:
                continue
            # Without its records an execution is no sample; its score alone must not move the group's statistics.
            self.evaluation = Evaluation(outcome=Outcome.EVALUATOR_FAILED, detail=f"not processed: {reason}"[:500])
            return

    async def _close(self, seconds: float) -> ExecutionClosed:
        self.enter_phase("CLOSE")
        finish = FinishExecution(spec=self.spec, run=self.run_result, evaluation=self.evaluation)
        try:
            await call(
                steps.FINISH_EXECUTION,
                finish,
                queue=ids.harness_queue(self.spec.run),
                give_up_seconds=steps.FINISH_EXECUTION.start_to_close + HOST_GRACE_SECONDS,
            )
        except ActivityError as error:
            workflow.logger.warning("execution closed without its host: %s", failure_text(error))
        closed = ExecutionClosed(
            execution=workflow.info().workflow_id,
            burst=self.spec.burst,
            group=self.spec.group,
            member=self.spec.member,
            end=self.run_result.end,
            outcome=self.evaluation.outcome,
            reward=self.evaluation.reward,
            target_tokens=self.target_tokens,
            model_calls=self.run_result.model_calls,
            seconds=seconds,
            harness_seconds=self.run_result.seconds,
            evaluator_seconds=self.evaluation.seconds,
        )
        scheduler = workflow.get_external_workflow_handle(ids.scheduler_id(self.spec.run))
        await scheduler.signal("execution_closed", closed)
        self.enter_phase("CLOSED")
        return closed

    def _never_ran(self, error: ActivityError) -> None:
        if is_cancelled_exception(error):
            raise error
        self.run_result = HarnessRun(end=EndReason.NEVER_RAN, detail=failure_text(error))
        self.evaluation = Evaluation(outcome=Outcome.NO_ARTIFACT, detail=failure_text(error))
