"""TrainingBatch: one optimizer step as a stream.

Groups come in the durable order of admission; their micro-steps are put on the batch's stream queue on demand
(joined cells x depth) and claimed by whichever training cell has room. A micro-step counts only if its cell is still
there, in the same boot, when gradients are combined, and only if the cell's own account says so; otherwise it goes
back on the stream. The joining window closes, the core combines, one update is made durable, committed, released.

Invariant: `accepted` holds at most one entry per micro-step, and the update sums exactly these.
"""

import asyncio

from pydantic import Field
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

from workflows import steps
from workflows.messages import ids
from workflows.messages.batch import BatchOutcome, BatchSpec, MicroStepTask, OpenedBatch, Sealed, UpdateApplied
from workflows.messages.carried import Carried
from workflows.messages.group import AdmittedGroup, MicroStep, PackGroup
from workflows.messages.scheduling import BatchAbandoned, BatchClosed, GroupAssigned, Member
from workflows.messages.transition import Resolution
from workflows.parking import StepAborted, StepSkipped, call, failure_text, stop_if_cancelled, upsert
from workflows.participants import REJOIN_SECONDS, Participants
from workflows.settlement import combine_of, commit_of, open_of, report_of
from workflows.stream import Stream, StreamState

BURST = SearchAttributeKey.for_keyword("Burst")
FAILED_COMBINES = 2
"""Failed combines after which nobody's gradient is trusted any more: all of it is recomputed."""
MAX_WINDOWS = 8
"""So many closed windows without an update are no accident any more: the batch parks."""
MAX_EMISSIONS = 12
"""A micro-step that failed this often has something wrong with itself: the batch parks."""


class BatchState(Carried):
    """Start of a TrainingBatch, and what it carries over."""

    spec: BatchSpec
    opened: bool = False
    groups: tuple[AdmittedGroup, ...] = ()
    packed: int = Field(default=0, description="how many of `groups` are packed")
    stream: StreamState = StreamState()
    members: tuple[Member, ...] = ()
    joined: tuple[Member, ...] = ()
    assigned: tuple[str, ...] = ()
    busy_seconds: float = Field(default=0.0, description="cells computed micro-steps, all of them together")


class _CoreLost(Exception):
    """The core was lost while it combined; whatever it made of it was not committed."""


@workflow.defn
class TrainingBatch(Participants):
    """One optimizer step."""

    @workflow.init
    def __init__(self, state: BatchState) -> None:
        super().__init__(state.spec, Stream(state.stream), state.members, state.joined)
        self.control = ids.control_queue(state.spec.spec.run)
        self.opened = state.opened
        self.groups = list(state.groups)
        self.packed = state.packed
        self.assigned = list(state.assigned)
        self.busy_seconds = state.busy_seconds
        self.tasks: set[asyncio.Task[None]] = set()
        self.packing: asyncio.Task[None] | None = None
        self.failed_combines = self.windows = 0
        self.last_failure = ""

    @workflow.signal
    def group_ready(self, group: AdmittedGroup) -> None:
        """The next group of this batch, in order of admission; a repeated one is ignored."""
        known = {(known.burst, known.group) for known in self.groups}
        if (group.burst, group.group) not in known and len(self.groups) < self.spec.spec.groups_per_step:
            self.groups.append(group)

    @workflow.signal
    async def claimed(self, index: int) -> None:
        """A cell has claimed this micro-step: its group is assigned from now on."""
        step = self.stream.micro_steps.get(index)
        if step is not None:
            await self._assign(step.group)

    @workflow.run
    async def run(self, state: BatchState) -> BatchOutcome:
        upsert(BURST.value_set(self.spec.spec.name))
        try:
            return await self._run()
        except (asyncio.CancelledError, FailureError, StepSkipped, StepAborted):
            await self._abandon()
            raise

    async def _run(self) -> BatchOutcome:
        burst = self.spec.spec
        if not self.opened:
            opened = OpenedBatch(
                run=burst.run,
                batch=self.batch,
                burst=burst.name,
                step=self.spec.step,
                weights=self.spec.weights,
                training=burst.training,
            )
            await self.parked_call(steps.RECORD_BATCH_OPENED, opened, queue=self.control)
            await self._scheduler().signal("open_batch", open_of(self.spec))
            stop_if_cancelled()
            self.opened = True
        self.enter_phase("STREAM")
        while True:
            await workflow.wait_condition(self._has_work)
            if self.broken is not None:
                raise self.broken
            if self._rolls():
                if self._quiet():
                    workflow.continue_as_new(self._carry())
            else:
                self._start_packing()
                self._emit()
            self._start_joins()
            if self._complete():
                update = await self._close_window()
                if update is not None:
                    return await self._finish_for_good(*update)

    # --- the stream

    def _has_work(self) -> bool:
        if self._rolls():
            more = self._quiet()
        else:
            more = (self.packed < len(self.groups) and self.packing is None) or self._may_emit()
        return more or self.broken is not None or bool(self._may_join()) or self._complete()

    def _rolls(self) -> bool:
        """The history is long: nothing new goes on the stream until the batch has continued as new."""
        return workflow.info().is_continue_as_new_suggested() and not self._complete()

    def _quiet(self) -> bool:
        """Nothing on the stream, nothing being packed, nobody joining; what is carried is the whole truth."""
        return not (self.tasks or self.joining or self.packing) and workflow.all_handlers_finished()

    def _may_emit(self) -> bool:
        if not self.spec.spec.policy.streaming and self.packed < self.spec.spec.groups_per_step:
            return False  # nothing is trained before the batch is complete
        room = 0 if self.closing else len(self.joined) * self.spec.spec.policy.in_flight_depth
        return bool(self.stream.pending) and len(self.stream.running) < room

    def _complete(self) -> bool:
        """Everything has been accumulated and everyone who did is there; with targets, the core too, to combine."""
        streamed = self.packed == self.spec.spec.groups_per_step and self.stream.idle
        return streamed and (not self.stream.micro_steps or (self.core in self.joined and self._all_present()))

    def _start_packing(self) -> None:
        if self.packing is None and self.packed < len(self.groups):
            self.packing = self._start(self._pack(self.groups[self.packed]))

    async def _pack(self, group: AdmittedGroup) -> None:
        name = ids.group_id(group.burst, group.group)
        try:
            if group.no_signal is None:
                request = PackGroup(
                    run=self.spec.spec.run,
                    batch=self.batch,
                    burst=group.burst,
                    group=group.group,
                    first_index=len(self.stream.micro_steps),
                    token_budget=self.spec.spec.training.token_budget,
                    layout=self.spec.spec.training.layout,
                    temperature=self.spec.spec.sampling.temperature,
                )
                packed = await self.parked_call(
                    steps.PACK_GROUP, request, queue=self.control, activity_id=f"pack-{group.burst}-{group.group}"
                )
                self.stream.add(packed.micro_steps)
                if not packed.micro_steps:
                    await self._assign(name)
            else:
                await self._assign(name)
            self.packed += 1
        finally:
            self.packing = None

    async def _assign(self, group: str) -> None:
        if group not in self.assigned:
            self.assigned.append(group)
            await self._scheduler().signal("group_assigned", GroupAssigned(batch=self.batch, group=group))

    def _emit(self) -> None:
        while self._may_emit():
            task = self._start(self._run_micro_step(*self.stream.take()))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _run_micro_step(self, step: MicroStep, emission: int) -> None:
        task = MicroStepTask(
            micro_step=step,
            emission=emission,
            weights=self.spec.weights,
            loss=self.spec.spec.training.loss,
            temperature=self.spec.spec.sampling.temperature,
        )
        try:
            done = await call(
                steps.RUN_MICRO_STEP,
                task,
                queue=ids.stream_queue(self.batch),
                activity_id=f"micro-step-{step.index}-{emission}",
                summary=f"{step.group}: {step.target_tokens} target tokens",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                return
            workflow.logger.warning("micro-step %d goes back: %s", step.index, failure_text(error))
            if emission % MAX_EMISSIONS == 0:
                await self._park(steps.RUN_MICRO_STEP.name, f"micro-step {step.index}: {failure_text(error)}")
            self.stream.put_back(step.index)
            return
        seconds = done.metrics.get("seconds")
        self.busy_seconds += seconds if isinstance(seconds, float) else 0.0
        member = self.joined.get(done.accepted.cell)
        if member is not None and member.boot_epoch == done.accepted.boot_epoch:
            self.stream.accept(done.accepted)
        else:
            self.stream.put_back(step.index)

    async def _park(self, step: str, reason: str) -> None:
        """Wait for an operator; anything but a retry gives the batch up."""
        if await self.park(step, reason) is not Resolution.RETRY:
            raise StepAborted(step, reason)

    # --- the update

    async def _close_window(self) -> tuple[UpdateApplied | None, tuple[Sealed, ...]] | None:
        """Seal, compare, combine. None: something did not count, the stream goes on."""
        if not self.stream.micro_steps:
            return None, ()
        self.closing = True
        self.enter_phase("COMBINE")
        try:
            if (update := await self._combine()) is not None:
                return update
            self.windows += 1
            if self.windows % MAX_WINDOWS == 0:
                await self._park(steps.COMBINE_UPDATE.name, self.last_failure)
        finally:
            self.closing = False
        self.enter_phase("STREAM")
        return None

    async def _combine(self) -> tuple[UpdateApplied, tuple[Sealed, ...]] | None:
        participants = list(self.joined.values())
        sealed = await asyncio.gather(*(self._seal(member) for member in participants))
        for member, account in zip(participants, sealed, strict=True):
            if self.joined.get(member.cell) != member:
                continue
            if account is None or list(account.accumulated) != self.stream.counted(member.cell):
                # The cell's own account decides: its whole gradient is void, all its micro-steps go back.
                self.last_failure = f"cell {member.cell} accumulated something else than the batch accepted"
                await self._discard(member)
        if not self._complete():
            self.joined.clear()  # sealed cells open again for the stream by joining again
            return None
        core, counted = self.joined[self.core], self.stream.in_order()
        accounts = tuple(account for account in sealed if account is not None and account.cell in self.joined)
        request = combine_of(self.spec, self.groups, accounts)
        combining = asyncio.ensure_future(call(steps.COMBINE_UPDATE, request, queue=core.queue))
        try:
            await workflow.wait_condition(lambda: combining.done() or self.joined.get(core.cell) != core)
            if not combining.done():
                raise _CoreLost("the core's boot is gone")
            update = combining.result()
        except (ActivityError, _CoreLost) as error:
            if is_cancelled_exception(error):
                raise
            # A participant or the core itself was lost while combining. Whoever is still there keeps its gradient
            # and joins again; when that does not help, nobody's is trusted.
            self.last_failure = failure_text(error)
            workflow.logger.warning("combining failed: %s", self.last_failure)
            self.failed_combines += 1
            if self.failed_combines % FAILED_COMBINES == 0:
                for member in list(self.joined.values()):
                    await self._discard(member)
            self.joined.clear()
            await asyncio.sleep(REJOIN_SECONDS)
            return None
        finally:
            combining.cancel()
        self.stream.settle(counted)  # whoever was lost since: the gradient was read and verified before
        return update, accounts

    async def _finish_for_good(self, update: UpdateApplied | None, accounts: tuple[Sealed, ...]) -> BatchOutcome:
        """Finish, whatever is asked meanwhile: an update that may be on record is never taken back."""
        finishing = asyncio.create_task(self._finish(update, accounts))
        try:
            return await asyncio.shield(finishing)
        except asyncio.CancelledError:
            return await finishing

    async def _finish(self, update: UpdateApplied | None, accounts: tuple[Sealed, ...]) -> BatchOutcome:
        commit = commit_of(self.spec, self.groups, self.stream, update)
        await self.parked_call(steps.COMMIT_BATCH, commit, queue=self.control)
        await asyncio.gather(*(self._release(self.joined[cell], discard=False) for cell in sorted(self.joined)))
        closed = BatchClosed(batch=self.batch, weights=commit.after, busy_seconds=self.busy_seconds)
        await self._scheduler().signal("batch_closed", closed)
        await workflow.wait_condition(workflow.all_handlers_finished)
        self.enter_phase("COMMITTED")
        report = report_of(self.spec, self.groups, self.stream, update, accounts)
        return BatchOutcome(report=report, weights=commit.after)

    async def _abandon(self) -> None:
        """Give the batch up: nobody's gradient counts, the Scheduler has its groups back."""
        self.closing = True
        await asyncio.gather(*(self._release(self.joined[cell], discard=True) for cell in sorted(self.joined)))
        await self._scheduler().signal("batch_abandoned", BatchAbandoned(batch=self.batch))

    def _carry(self) -> BatchState:
        return BatchState(
            spec=self.spec,
            opened=True,
            groups=tuple(self.groups),
            packed=self.packed,
            stream=self.stream.carry(),
            members=tuple(self.members[cell] for cell in sorted(self.members)),
            joined=tuple(self.joined[cell] for cell in sorted(self.joined)),
            assigned=tuple(self.assigned),
            busy_seconds=self.busy_seconds,
        )

    def _scheduler(self) -> "workflow.ExternalWorkflowHandle[None]":
        return workflow.get_external_workflow_handle(ids.scheduler_id(self.spec.spec.run))
