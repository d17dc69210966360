"""Scheduler: one per run. Counts, queues, launches, admits, decides, signals; continues as new.

Every decision is a pure function of the books (`workflows.accounts`, `workflows.cell_table`) from
`workflows.policy`; this class only wires events to them. Signals change the books at once; one main loop acts on
them; side effects run as jobs beside it, so that nothing here ever waits for an activity while an event waits.
"""

import hashlib

from temporalio import workflow

from workflows import steps
from workflows.books import OpenBatchState, SchedulerState
from workflows.elastic import Elastic, refusal
from workflows.messages import ids
from workflows.messages.burst import BurstSpec, Purpose
from workflows.messages.control import RecordPublished
from workflows.messages.execution import ExecutionClosed
from workflows.messages.fleet import REBOOTS, CellReport, CellRole
from workflows.messages.group import AdmittedGroup
from workflows.messages.scheduling import (
    BatchAbandoned,
    BatchClosed,
    BurstDrained,
    BurstPublished,
    BurstRefused,
    CancelBurst,
    EndBurst,
    EvaluationDone,
    GroupAssigned,
    Member,
    OpenBatch,
    OpenBurst,
)
from workflows.messages.transition import Direction
from workflows.overview import overview
from workflows.policy.dispatch import launchable
from workflows.policy.safe_mode import after_operator, allocation_text
from workflows.policy.state import PolicyState

LAUNCH_CHUNK = 32
ROLL_SECONDS, ROLL_PAUSE_SECONDS = 30.0, 120.0
"""To roll over, new jobs are held back until the running ones are done, that long at most; then not for a while."""


@workflow.defn
class Scheduler(Elastic):
    """The run's scheduler."""

    @workflow.init
    def __init__(self, state: SchedulerState) -> None:
        super().__init__(state)

    # --- facts, as they come

    @workflow.signal
    def open_burst(self, request: OpenBurst) -> None:
        """A burst wants to dispatch; it waits for its turn."""
        name = request.spec.name
        known = [*self.waiting, *([self.opening] if self.opening is not None else [])]
        runs = [other.run_id for other in known if other.spec.name == name]
        runs += [self.burst_run] if self.burst is not None and self.burst.name == name else []
        if request.run_id in runs:
            return
        if runs or (self.accounts.knows(name) and request.spec.purpose is Purpose.TRAIN):
            reason = f"name: a burst {name!r} has been in this run before; choose another name"
            self._tell(name, "burst_refused", BurstRefused(burst=name, reason=reason))
        elif misfit := request.spec.policy.misfit(len(self.cells.entries)):
            self._tell(name, "burst_refused", BurstRefused(burst=name, reason=misfit))
        else:
            self.waiting.append(request)
        self.dirty = True

    @workflow.signal
    def execution_closed(self, closed: ExecutionClosed) -> None:
        """An execution has ended; counted once by its id, a late or unknown report changes nothing."""
        self._close(closed)

    @workflow.signal
    def open_batch(self, request: OpenBatch) -> None:
        """A batch wants groups and members."""
        if self.batch is None or self.batch.request.batch != request.batch:
            if self.batch is not None:
                self._free_batch(self.batch.request.batch)
            self.batch = OpenBatchState(request=request, held=self._core_leaves())
            for cell in self.cells.in_role(CellRole.TRAINING):
                self._call_member(cell)
        self.dirty = True

    @workflow.signal
    def group_assigned(self, message: GroupAssigned) -> None:
        """A group's first micro-step was claimed (or it has none)."""
        if self.batch is not None and self.batch.request.batch == message.batch:
            self.accounts.assigned.add(message.group)
            assigned = tuple(sorted({*self.batch.assigned, message.group}))
            self.batch = self.batch.model_copy(update={"assigned": assigned})
        self.dirty = True

    @workflow.signal
    def batch_closed(self, message: BatchClosed) -> None:
        """A batch's update is committed: its groups are consumed, whatever becomes of its burst."""
        if message.weights.version > (self.committed or self.weights).version:
            self.committed = message.weights
        if self.batch is not None and self.batch.request.batch == message.batch:
            self.accounts.consume(self.batch.sent)
            self._iterated(len(self.batch.sent), message.busy_seconds)
            self.batch = None
        self.dirty = True

    @workflow.signal
    def batch_abandoned(self, message: BatchAbandoned) -> None:
        """Nothing of this batch counts: its groups are free again."""
        self._free_batch(message.batch)

    @workflow.signal
    def end_burst(self, message: EndBurst) -> None:
        """The last batch is closed: return the cells, publish."""
        if self.burst is not None and self.burst.name == message.burst:
            self.ending = message
        self.dirty = True

    @workflow.signal
    def cancel_burst(self, message: CancelBurst) -> None:
        """Stop dispatching this burst, close what is queued, cancel what runs."""
        self._cancel(message.burst)

    @workflow.signal
    def cell_reported(self, report: CellReport) -> None:
        """A cell's role has settled, or its worker has booted."""
        if self._took_over(report):
            return
        before = self.cells.apply(report, self._asked(report.cell))
        if before is None:
            workflow.logger.info("ignored report of cell %d, boot %d", report.cell, report.boot_epoch)
            return
        self._arrived(report)
        if report.role is CellRole.RETIRED:
            self._left(report)
            return
        if before.role is CellRole.TRAINING and (
            report.role is not CellRole.TRAINING or report.boot_epoch != before.boot_epoch
        ):
            left = Member(cell=report.cell, boot_epoch=before.boot_epoch, queue=before.queue)
            self._tell_batch("member_left", left)
        if report.role is CellRole.TRAINING:
            self._call_member(report.cell)
        serves = report.role is CellRole.ROLLOUT and self.cells.role(report.cell) is CellRole.ROLLOUT
        if serves and (report.version is None or report.version < self.weights.version):
            # It booted, or came back, with weights it was told of before the last publish.
            self._move(report.cell, Direction.PUBLISH, CellRole.ROLLOUT)
        if report.reason.startswith("rolled back"):
            self.cooldown_until = workflow.time() + self._policy().cooldown_seconds
        if report.reason or report.role is CellRole.PARKED:
            kind = "reboot" if report.reason.startswith(REBOOTS) else "cell"
            kind = "alarm" if report.role is CellRole.PARKED else kind
            self._note(kind, report.cell, (f"{report.role.value}: {report.reason}",))
        self.dirty = True

    @workflow.update
    async def enter_safe_mode(self, reason: str) -> str:
        """Freeze the last valid allocation; training goes on."""
        self._enter(after_operator(self.mode, freeze=True, detail=reason[:200], now=workflow.time()))
        self.dirty = True
        return f"safe mode: {allocation_text(self.mode)}"

    @enter_safe_mode.validator
    def _may_enter(self, reason: str) -> None:
        if self.mode.frozen:
            raise refusal(f"in safe mode already ({self.mode.cause}: {self.mode.detail})")
        if not reason.strip():
            raise refusal("reason: say why; it goes to the ledger")

    @workflow.update
    async def leave_safe_mode(self, reason: str) -> str:
        """Let the policy decide again; what led into safe mode is forgotten."""
        was = f"{self.mode.cause}: {self.mode.detail}"
        self.mode = after_operator(self.mode, freeze=False, detail=reason, now=workflow.time())
        self._note("safe_mode", None, ("left", f"operator: {reason[:200]}; it was {was}"))
        return f"the policy decides again; it was {was}"

    @leave_safe_mode.validator
    def _may_leave(self, reason: str) -> None:
        if not self.mode.frozen:
            raise refusal("not in safe mode")
        if not reason.strip():
            raise refusal("reason: say why; it goes to the ledger")

    @workflow.query
    def state(self) -> SchedulerState:
        """The books as they are now."""
        return self._carry()

    @workflow.query
    def policy_state(self) -> PolicyState:
        """What the policy sees now."""
        return self._policy_state()

    # --- the main loop

    @workflow.run
    async def run(self, state: SchedulerState) -> None:
        self.enter_phase("RUNNING")
        recheck: float | None = None
        while True:
            until_sweep = max(1.0, self.next_sweep - workflow.time())
            await self._wait(min(until_sweep, recheck) if recheck is not None else until_sweep)
            if self.broken is not None:
                raise self.broken
            self.dirty = False
            recheck = self._act()
            self._show_overview()
            if self._rolls() and not (self.jobs or self.dirty) and workflow.all_handlers_finished():
                workflow.continue_as_new(self._carry())

    def _rolls(self) -> bool:
        """Whether new jobs are held back to continue as new. One that hangs or is parked must not stop the rest."""
        if not workflow.info().is_continue_as_new_suggested() or self._blocked:
            return False
        now = workflow.time()
        if self.roll_asked is None or now - self.roll_asked > ROLL_SECONDS + ROLL_PAUSE_SECONDS:
            self.roll_asked = now
        return now - self.roll_asked <= ROLL_SECONDS

    async def _wait(self, timeout: float) -> None:
        try:
            await workflow.wait_condition(lambda: self.dirty, timeout=timeout, timeout_summary="re-evaluate")
        except TimeoutError:
            self.dirty = True

    def _act(self) -> float | None:
        """Do everything the books allow now; returns seconds after which time alone may change it."""
        capacity = self.cells.capacity(self.weights.version)
        self.telemetry = self.telemetry.looked(workflow.time(), self.accounts.running, capacity)
        if self.ledger and not self.writing:
            self.writing = True
            self._spawn(self._write_ledger(), "write the ledger")
        if self._rolls():
            return None  # no new jobs: the books roll over as soon as the running ones are done
        if workflow.time() >= self.next_sweep and not self.sweeping:
            self.next_sweep = workflow.time() + self.spec.sweep_seconds
            if self.accounts.roster or self._open_bursts() or self.batch is not None:
                self.sweeping = True
                self._spawn(self._sweep(), "sweep the roster")
        if self.burst is None and self.waiting and self.opening is None:
            self.opening = self.waiting.pop(0)
            self._spawn(self._open(self.opening), f"open burst {self.opening.spec.name}")
        self._launch()
        if self.accounts.next_complete(self._given_up()) is not None and not self.admitting:
            self.admitting = True
            self._spawn(self._admit(), "admit groups")
        self._feed_batch()
        self._end_if_over()
        waits = [self._let_go()]
        self._send_idle_home()
        waits.append(self._decide())
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def _show_overview(self) -> None:
        """Once per turn of the main loop, however many signals came."""
        names = [request.spec.name for request in self.waiting]
        burst = self.burst.name if self.burst is not None else None
        ready, version = len(self.accounts.ready), self.weights.version
        state, mode = self._policy_state(), self.mode
        costs, late = self.telemetry.costs, self.cells.late()
        text = overview(
            state, version=version, burst=burst, waiting=names, ready=ready, mode=mode, costs=costs, late=late
        )
        self.show(text)

    def _launch(self) -> None:
        capacity = self.cells.capacity(self.weights.version)
        count = launchable(capacity, self.accounts.running, self.accounts.queued)
        taken = self.accounts.launch(count, workflow.time())
        for start in range(0, len(taken), LAUNCH_CHUNK):
            self._spawn(self._launch_chunk(tuple(taken[start : start + LAUNCH_CHUNK])), "launch executions")

    def _end_if_over(self) -> None:
        """A burst that ends: publish once, then wait until no cell is on its way any more."""
        burst = self.burst
        if burst is None:
            return
        if burst.purpose is Purpose.EVALUATE:
            if not self.accounts.open_members(burst.name):
                self._close_burst(burst, self._evaluation(burst))
            return
        if self.burst_cancelled:
            if self.batch is not None or self.accounts.open_members(burst.name):
                return
            if self.ending is None:  # what its batches have committed is the run's newest version all the same
                self.ending = EndBurst(burst=burst.name, weights=self.committed or self.weights)
        if self.ending is None:
            return
        if not self.publishing:
            self.publishing = True
            self._publish(self.ending)
        # A cell that was on its way into training when the burst ended is sent back, unless the policy keeps it.
        self._keep_late()
        for cell in self.cells.in_role(CellRole.TRAINING):
            self._return(cell, "came into training after the burst had ended")
        serving = self.cells.serving(self.weights.version)
        settled = set(self.cells.in_role(CellRole.TO_TRAINING, CellRole.TO_ROLLOUT, CellRole.ROLLOUT)) == set(serving)
        # Where every engine failed there is nobody who has shown the version: the burst waits for one.
        if settled and (serving or self.burst_cancelled):
            absent = {cell: entry for cell, entry in self.cells.entries.items() if cell not in serving}
            published = BurstPublished(
                burst=burst.name,
                weights=self.weights,
                serving=serving,
                not_serving={cell: f"{entry.role.value} {entry.reason}".strip() for cell, entry in absent.items()},
            )
            self._close_burst(burst, published)
        elif settled and self.staying:
            self.staying = ()  # those that stayed for the next burst are the only ones left who may show it
            for cell in self.cells.in_role(CellRole.TRAINING):
                self._return(cell, "no other cell serves")

    def _evaluation(self, burst: BurstSpec) -> EvaluationDone:
        executions, valid, mean = self.accounts.evaluation(burst.name)
        return EvaluationDone(burst=burst.name, executions=executions, valid=valid, mean_reward=mean)

    def _close_burst(self, burst: BurstSpec, answer: EvaluationDone | BurstPublished) -> None:
        """Answer the burst and make room for the next one."""
        if self.burst_cancelled:
            self.accounts.abandon_burst(burst.name)
            self._tell(burst.name, "burst_drained", BurstDrained(burst=burst.name))
        elif isinstance(answer, EvaluationDone):
            self.accounts.abandon_burst(burst.name)
            self._tell(burst.name, "evaluation_done", answer)
        else:
            published = RecordPublished(run=self.run_name, version=answer.weights.version)
            self._spawn(self._control(steps.RECORD_PUBLISHED, published), "record the publish")
            self._tell(burst.name, "burst_published", answer)
        self.burst, self.ending, self.publishing, self.burst_cancelled = None, None, False, False
        self.dirty = True

    def _feed_batch(self) -> None:
        """Send the open batch its next groups, in order of admission."""
        batch, given_up = self.batch, self._given_up()
        if batch is None or batch.held:
            return
        room = batch.request.groups - len(batch.sent)
        waiting = [
            group
            for group in self.accounts.ready
            if group.burst != given_up and ids.group_id(group.burst, group.group) not in batch.sent
        ]
        if not batch.request.policy.streaming and not batch.sent:
            waiting = self._whole_batch(batch.request, waiting)
        for group in waiting[:room]:
            batch = batch.model_copy(update={"sent": (*batch.sent, ids.group_id(group.burst, group.group))})
            self._tell_batch("group_ready", group)
        self.batch = batch

    def _whole_batch(self, request: OpenBatch, ready: list[AdmittedGroup]) -> list[AdmittedGroup]:
        """Without streaming: the groups of the batch once all are there and no cell is on its way to it; shuffled, a
        random part of what the rest of the burst needs, once all of that is there."""
        wanted = request.groups + (request.later_groups if request.policy.shuffle else 0)
        if len(ready) < wanted or self.cells.in_role(CellRole.TO_TRAINING):
            return []
        ready = ready[:wanted]
        return sorted(ready, key=lambda group: _lot(request.seed, group)) if request.policy.shuffle else ready


def _lot(seed: int, group: AdmittedGroup) -> bytes:
    """A group's place in the shuffled order, the same at every look."""
    return hashlib.sha256(f"{seed}/{ids.group_id(group.burst, group.group)}".encode()).digest()
