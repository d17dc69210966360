"""Burst: a fixed dispatch quota, `steps` training batches, then a publish. Started by a person with the Temporal CLI.

It owns no counters: it asks the Scheduler to dispatch, runs one TrainingBatch after the other, and asks the Scheduler
to publish. Cancelling it stops dispatch, closes what is queued, cancels what runs, and returns the cells.
"""

import asyncio
from asyncio import CancelledError

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.workflow import ChildWorkflowCancellationType

from workflows.batch import BatchState, TrainingBatch
from workflows.messages import ids
from workflows.messages.batch import BatchSpec
from workflows.messages.burst import BurstReport, BurstSpec, Purpose, StepReport
from workflows.messages.scheduling import (
    BurstDrained,
    BurstOpened,
    BurstPublished,
    BurstRefused,
    CancelBurst,
    EndBurst,
    EvaluationDone,
    OpenBurst,
    Weights,
)
from workflows.parking import PHASE, stop_if_cancelled, upsert

BURST = SearchAttributeKey.for_keyword("Burst")


class _Refused(Exception):
    """The Scheduler does not take this burst."""


@workflow.defn(failure_exception_types=[TypeError])
class Burst:
    """One burst. Started without its file, or with two, it fails: a TypeError before anything has begun."""

    @workflow.init
    def __init__(self, spec: BurstSpec) -> None:
        self.spec = spec
        self.opened: BurstOpened | None = None
        self.evaluated: EvaluationDone | None = None
        self.published: BurstPublished | None = None
        self.refused: BurstRefused | None = None
        self.drained = False

    @workflow.signal
    def burst_opened(self, opened: BurstOpened) -> None:
        """The Scheduler has dispatched this burst's top-up."""
        self.opened = opened

    @workflow.signal
    def burst_refused(self, refused: BurstRefused) -> None:
        """The Scheduler cannot dispatch this burst: its tasks are wrong."""
        self.refused = refused

    @workflow.signal
    def evaluation_done(self, done: EvaluationDone) -> None:
        """Every execution of this evaluation is closed."""
        self.evaluated = done

    @workflow.signal
    def burst_published(self, published: BurstPublished) -> None:
        """Every cell that serves has verified the burst's version."""
        self.published = published

    @workflow.signal
    def burst_drained(self, drained: BurstDrained) -> None:
        """After a cancellation: every execution of this burst is closed."""
        self.drained = True

    @workflow.run
    async def run(self, spec: BurstSpec) -> BurstReport:
        expected = ids.burst_id(spec.run, spec.name)
        if workflow.info().workflow_id != expected:
            message = f"name, run: this burst must be started with --workflow-id {expected}"
            raise ApplicationError(message, type="InvalidSpec", non_retryable=True)
        upsert(BURST.value_set(spec.name), PHASE.value_set("QUEUED"))
        try:
            await self._open()
            return await self._evaluate() if spec.purpose is Purpose.EVALUATE else await self._train()
        except _Refused as refused:
            raise ApplicationError(str(refused), type="InvalidSpec", non_retryable=True) from None
        except (CancelledError, FailureError):
            await self._cancel()  # whatever went wrong, the Scheduler must not wait for this burst
            raise

    async def _open(self) -> None:
        opening = OpenBurst(spec=self.spec, run_id=workflow.info().run_id)
        try:
            await self._tell("open_burst", opening)
        except ApplicationError as error:
            raise _Refused(f"run: no scheduler runs for {self.spec.run!r}; is its stack up?") from error
        stop_if_cancelled()

    async def _evaluate(self) -> BurstReport:
        opened = await self._turn()
        upsert(PHASE.value_set("EVALUATE"))
        await workflow.wait_condition(lambda: self.evaluated is not None)
        done = self.evaluated
        if done is None:
            raise ApplicationError("evaluation ended without an answer", type="NoAnswer", non_retryable=True)
        return BurstReport(
            run=self.spec.run,
            burst=self.spec.name,
            purpose=self.spec.purpose,
            version=opened.weights.version,
            executions=done.executions,
            executions_valid=done.valid,
            mean_reward=done.mean_reward,
        )

    async def _train(self) -> BurstReport:
        opened = await self._turn()
        upsert(PHASE.value_set("TRAIN"))
        weights, reports = opened.weights, list[StepReport]()
        # B = 0 is a burst of nothing: it closes at once, without a step.
        for step in range(self.spec.steps if self.spec.groups_per_step else 0):
            report, weights = await self._step(step, weights, opened)
            reports.append(report)
            stop_if_cancelled()  # asked for while the batch was being committed, so the batch came to its end
        upsert(PHASE.value_set("PUBLISH"))
        await self._tell("end_burst", EndBurst(burst=self.spec.name, weights=weights))
        stop_if_cancelled()
        await workflow.wait_condition(lambda: self.published is not None)
        rewards = [report.mean_reward for report in reports if report.mean_reward is not None]
        ages = [(report.groups, report.mean_staleness) for report in reports if report.mean_staleness is not None]
        groups = sum(count for count, _ in ages)
        return BurstReport(
            run=self.spec.run,
            burst=self.spec.name,
            purpose=self.spec.purpose,
            version=weights.version,
            mean_staleness=sum(count * age for count, age in ages) / groups if groups else None,
            expected_staleness=self.spec.expected_staleness,
            steps=tuple(reports),
            executions=opened.groups * self.spec.executions_per_group,
            executions_valid=sum(report.executions_valid for report in reports),
            mean_reward=sum(rewards) / len(rewards) if rewards else None,
        )

    async def _turn(self) -> BurstOpened:
        """Wait until it is this burst's turn and its groups are dispatched."""
        await workflow.wait_condition(lambda: self.opened is not None or self.refused is not None)
        if self.opened is None:
            raise _Refused(self.refused.reason if self.refused else "no answer")
        return self.opened

    async def _step(self, step: int, weights: Weights, opened: BurstOpened) -> tuple[StepReport, Weights]:
        batch = ids.batch_id(self.spec.run, self.spec.name, step)
        spec = BatchSpec(spec=self.spec, step=step, batch=batch, weights=weights, counters=opened.counters)
        outcome = await workflow.execute_child_workflow(
            TrainingBatch.run,
            BatchState(spec=spec),
            id=batch,
            static_summary=f"step {step + 1} of {self.spec.steps}, weights v{weights.version}",
            cancellation_type=(
                ChildWorkflowCancellationType.ABANDON
                if self.spec.on_cancel == "finish_batch"
                else ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED
            ),
        )
        return outcome.report, outcome.weights

    async def _cancel(self) -> None:
        upsert(PHASE.value_set("CANCELLING"))
        await self._tell("cancel_burst", CancelBurst(burst=self.spec.name))
        await asyncio.shield(workflow.wait_condition(lambda: self.drained))
        upsert(PHASE.value_set("CANCELLED"))

    async def _tell(self, signal: str, message: OpenBurst | EndBurst | CancelBurst) -> None:
        await workflow.get_external_workflow_handle(ids.scheduler_id(self.spec.run)).signal(signal, message)
