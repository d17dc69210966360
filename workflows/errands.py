"""The Scheduler's jobs: side effects that run beside its main loop, and what it does with their answers.

Every job can be repeated: what it works on is in the books, and they change only with its answer.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError

from workflows import steps
from workflows.books import Books
from workflows.messages import ids
from workflows.messages.burst import BurstSpec, Purpose
from workflows.messages.control import (
    CancelExecutions,
    ExecutionFate,
    LaunchExecutions,
    MeasurePipeline,
    RecordLedger,
    ShareSlots,
    SlotsInUse,
    SweepRoster,
)
from workflows.messages.execution import ExecutionSpec
from workflows.messages.fleet import CellRole
from workflows.messages.group import AdmitGroup, AdmittedGroup, NoSignal
from workflows.messages.scheduling import BurstDrained, BurstOpened, BurstRefused, OpenBurst
from workflows.messages.tasks import SelectedTasks, SelectTasks
from workflows.parking import StepAborted, StepSkipped, call, failure_text
from workflows.policy.dispatch import top_up

FINISH_SECONDS = 240.0
"""How long the sweep waits for the harness host before it closes an execution without it."""
REFILLS = 2
"""With `refill`, a burst replaces at most so many times its quota of groups; later ones take their place."""


class Errands(Books):
    """What the Scheduler has done for it."""

    async def _open(self, request: OpenBurst) -> None:
        """A burst's turn: draw its tasks, dispatch, answer."""
        spec = request.spec
        train = spec.purpose is Purpose.TRAIN
        count = top_up(spec.quota, self.accounts.outstanding()) if train else spec.groups_per_step
        drawing = asyncio.create_task(self._draw(spec, count))
        await workflow.wait_condition(lambda: drawing.done() or self.cancelled_while_opening)
        cancelled, self.cancelled_while_opening = self.cancelled_while_opening, False
        self.opening = None
        if cancelled:
            drawing.cancel()
            self._tell(spec.name, "burst_drained", BurstDrained(burst=spec.name))
            return
        try:
            drawn = drawing.result()
        except ActivityError as error:
            self._tell(spec.name, "burst_refused", BurstRefused(burst=spec.name, reason=failure_text(error)))
            return
        executions = self._dispatch(spec, drawn)
        order = ("shuffled over its steps",) if train and spec.policy.shuffle else ()
        self.burst, self.burst_run, self.refilled = spec, request.run_id, 0
        self.telemetry = self.telemetry.began(workflow.time())
        self._note("dispatch", None, (f"{spec.name}: {len(drawn.tasks)} groups, {executions} executions", *order))
        opened = BurstOpened(
            burst=spec.name,
            weights=self.weights,
            groups=len(drawn.tasks),
            outstanding=self.accounts.outstanding(),
            counters=self._counters(),
        )
        self._tell(spec.name, "burst_opened", opened)

    async def _draw(self, spec: BurstSpec, count: int) -> SelectedTasks:
        request = SelectTasks(
            run=self.run_name,
            tasks=spec.tasks,
            split=spec.split,
            purpose=spec.purpose,
            seed=spec.seed,
            position=self.positions.get(_tasks_of(spec), 0) if spec.purpose is Purpose.TRAIN else 0,
            count=count,
            harness=spec.harness,
        )
        return await call(steps.SELECT_TASKS, request, queue=self.control, summary=f"tasks of {spec.name}")

    def _dispatch(self, spec: BurstSpec, drawn: SelectedTasks) -> int:
        if spec.purpose is Purpose.TRAIN:
            self.positions[_tasks_of(spec)] = drawn.position
        executions = self.accounts.dispatch(spec, drawn.tasks, self.weights.version)
        self.telemetry = self.telemetry.level(self.accounts.waterlevel)
        return executions

    async def _launch_chunk(self, chunk: tuple[ExecutionSpec, ...]) -> None:
        await self._control(steps.LAUNCH_EXECUTIONS, LaunchExecutions(executions=chunk))
        if self.burst is not None and self.burst_cancelled:
            await self._cancel_running(self.burst.name)  # some may have started after the others were cancelled

    async def _cancel_running(self, burst: str) -> None:
        prefix = f"{self.run_name}/execution/{burst}/"
        running = tuple(sorted(name for name in self.accounts.roster if name.startswith(prefix)))
        if running:
            cancel = CancelExecutions(executions=running, reason="burst cancelled")
            await self._control(steps.CANCEL_EXECUTIONS, cancel)

    async def _admit(self) -> None:
        """Admit complete groups one after the other: their order is the order of training."""
        try:
            while (name := self.accounts.next_complete(self._given_up())) is not None:
                request = self.accounts.admission_of(name, self.weights.version)
                admitted = await self._admitted(request)
                replaced = await self._replaced(request, admitted)
                self.accounts.admit(admitted, keep=not replaced)
                self.dirty = True
        finally:
            self.admitting = False

    async def _admitted(self, request: AdmitGroup) -> AdmittedGroup:
        summary = f"admit {ids.group_id(request.burst, request.group)}"
        try:
            return await self.parked_call(steps.ADMIT_GROUP, request, queue=self.control, summary=summary)
        except (StepSkipped, StepAborted) as error:
            # Its place in the quota must be taken by something, or the batch waits for ever.
            self._alarm(summary, f"{error}; it takes its place without signal")
            return AdmittedGroup(
                burst=request.burst,
                group=request.group,
                sequence=0,
                valid=0,
                no_signal=NoSignal.TOO_FEW_VALID,
                version=request.version,
            )

    async def _replaced(self, request: AdmitGroup, admitted: AdmittedGroup) -> bool:
        """With `refill`, dispatch another group for one without signal; bounded, and only for the burst that runs."""
        burst = self.burst
        if not (request.training.refill and admitted.no_signal) or burst is None or burst.name != request.burst:
            return False
        if self.burst_cancelled or self.ending or self.refilled >= REFILLS * burst.quota:
            return False
        try:
            drawn = await self._draw(burst, 1)
        except ActivityError as error:
            self._alarm(f"refill {burst.name}", failure_text(error))
            return False
        if self.burst is not burst or self.burst_cancelled or not drawn.tasks:
            return False
        self.refilled += 1
        self._dispatch(burst, drawn)
        self._note("dispatch", None, (f"{burst.name}: 1 group for {admitted.group:04d}, {admitted.no_signal}",))
        return True

    async def _sweep(self) -> None:
        """Close executions whose workflow is gone without a report (terminated, timed out, reset); so with the burst
        and the batch that are open here."""
        try:
            old = workflow.time() - self.spec.sweep_seconds / 2
            names = sorted(name for name, launched_at in self.accounts.roster.items() if launched_at < old)
            bursts = self._open_bursts()
            names += [ids.burst_id(self.run_name, burst) for burst in bursts]
            names += [self.batch.request.batch] if self.batch is not None else []
            swept = await call(steps.SWEEP_ROSTER, SweepRoster(executions=tuple(names)), queue=self.control)
            await asyncio.gather(*(self._bury(fate, bursts) for fate in swept.closed))
        finally:
            self.sweeping = False

    async def _bury(self, fate: ExecutionFate, bursts: dict[str, str]) -> None:
        """`bursts`: those that were asked for. Another of the same name may have come since; this is not its fate."""
        for burst, run in self._open_bursts().items():
            if fate.execution == ids.burst_id(self.run_name, burst) and bursts.get(burst) == run:
                self._alarm(fate.execution, f"its workflow is {fate.status}: the burst is cancelled")
                self._cancel(burst)
        if self.batch is not None and fate.execution == self.batch.request.batch:
            self._alarm(fate.execution, f"its workflow is {fate.status}: the batch is given up")
            self._free_batch(fate.execution)
        if fate.execution in self.accounts.roster:
            finish = self.accounts.finish_of(fate)
            queue, summary = ids.harness_queue(self.run_name), f"close {fate.execution}"
            try:
                await call(steps.FINISH_EXECUTION, finish, queue=queue, summary=summary, give_up_seconds=FINISH_SECONDS)
            except ActivityError as error:
                if isinstance(error.cause, CancelledError):
                    raise
                self._alarm(summary, f"closed without its host: {failure_text(error)}")
            self._note("close", None, (fate.execution, f"swept: workflow {fate.status}"))
            self._close(self.accounts.closed_of(fate))

    def _open_bursts(self) -> dict[str, str]:
        """Name -> run id of the bursts whose workflow must be alive: the one that runs, those that wait."""
        running = {self.burst.name: self.burst_run} if self.burst is not None and not self.burst_cancelled else {}
        return running | {waiting.spec.name: waiting.run_id for waiting in self.waiting}

    def _cancel(self, name: str) -> None:
        """Stop dispatching this burst, close what is queued, cancel what runs; answer when nothing of it is left."""
        waiting = [request for request in self.waiting if request.spec.name == name]
        self.waiting = [request for request in self.waiting if request.spec.name != name]
        if self.burst is not None and self.burst.name == name:
            self.burst_cancelled = True
            cancelled = self.accounts.cancel_queued(name)
            self._note("close", None, (f"burst {name} cancelled: {cancelled} queued executions closed",))
            self._spawn(self._cancel_running(name), "cancel executions")
        elif self.opening is not None and self.opening.spec.name == name:
            self.cancelled_while_opening = True
        else:
            reason = "was waiting" if waiting else "is not open here"
            self._note("close", None, (f"burst {name} cancelled: {reason}",))
            self._tell(name, "burst_drained", BurstDrained(burst=name))
        self.dirty = True

    def _given_up(self) -> str | None:
        """The cancelled burst whose groups nobody will train."""
        burst = self.burst
        if burst is None or not self.burst_cancelled:
            return None
        return None if self.batch is not None and burst.on_cancel == "finish_batch" else burst.name

    def _free_batch(self, batch: str) -> None:
        """The batch is over and nothing of it counts: its groups are ready for the next one, in their order."""
        if self.batch is not None and self.batch.request.batch == batch:
            self.accounts.assigned -= set(self.batch.sent)
            self.batch = None
        self.dirty = True

    async def _measure(self) -> None:
        """Look at the pipeline. While this hangs, what is known grows old, and safe mode watches its age."""
        since = workflow.time() - self._policy().throughput.sample_seconds
        training = self.cells.in_role(CellRole.TRAINING)
        try:
            request = MeasurePipeline(run=self.run_name, since=since, cells=training)
            sample = await call(steps.MEASURE_PIPELINE, request, queue=self.control)
            self.telemetry = self.telemetry.sampled(sample, await self._share_slots())
        finally:
            self.measuring = False

    async def _share_slots(self) -> SlotsInUse | None:
        """Tell the harness host how processor slots are shared out now; a host that restarted hears it anew."""
        slots = self._slots()
        if not (slots.harness and slots.evaluator):
            return None
        share = ShareSlots(run=self.run_name, change=slots.change, harness=slots.harness, evaluator=slots.evaluator)
        return await call(steps.SHARE_SLOTS, share, queue=ids.harness_queue(self.run_name))

    async def _write_ledger(self) -> None:
        try:
            while self.ledger:
                entries, self.ledger = tuple(self.ledger[:64]), self.ledger[64:]
                await self.parked_call(steps.RECORD_LEDGER, RecordLedger(entries=entries), queue=self.control)
        finally:
            self.writing = False


def _tasks_of(spec: BurstSpec) -> str:
    return f"{spec.tasks}/{spec.split}/{spec.seed}"
