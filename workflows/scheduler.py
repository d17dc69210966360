"""Scheduler: one per run. Counts, queues, launches, admits, decides, signals; continues as new.

Every decision is a pure function of the books (`workflows.accounts`, `workflows.cell_table`) from
`workflows.policy`; this class only wires events to them. Signals change the books at once; one main loop acts on
them; side effects run as jobs beside it, so that nothing here ever waits for an activity while an event waits.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows import steps
from workflows.books import Books, OpenBatchState, SchedulerState
from workflows.messages import ids
from workflows.messages.burst import BurstSpec, Purpose
from workflows.messages.control import CancelExecutions, LaunchExecutions, RecordLedger, SweepRoster
from workflows.messages.execution import ExecutionClosed
from workflows.messages.fleet import CellReport, CellRole
from workflows.messages.scheduling import (
    BatchAbandoned,
    BatchClosed,
    BurstDrained,
    BurstOpened,
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
from workflows.messages.tasks import SelectTasks
from workflows.messages.transition import Direction, MoveCell
from workflows.parking import PHASE, call, failure_text, upsert
from workflows.policy.dispatch import launchable, top_up
from workflows.policy.state import Decision, PolicyState, Verdict
from workflows.policy.waterlevel import after_publish, core_may_stay, decide

LAUNCH_CHUNK = 32
COOLDOWN_SECONDS = 15.0
"""After a rolled-back move, before the next one is tried."""


@workflow.defn
class Scheduler(Books):
    """The run's scheduler."""

    @workflow.init
    def __init__(self, state: SchedulerState) -> None:
        super().__init__(state)

    # --- facts, as they come

    @workflow.signal
    def open_burst(self, request: OpenBurst) -> None:
        """A burst wants to dispatch; it waits for its turn."""
        known = [waiting.spec.name for waiting in self.waiting] + [self.burst.name if self.burst else ""]
        if request.spec.name not in known:
            self.waiting.append(request)
        self.dirty = True

    @workflow.signal
    def execution_closed(self, closed: ExecutionClosed) -> None:
        """An execution has ended; counted once by its id, a late or unknown report changes nothing."""
        if not self.accounts.close(closed):
            workflow.logger.info("ignored report of %s: not running here", closed.execution)
        self.dirty = True

    @workflow.signal
    def open_batch(self, request: OpenBatch) -> None:
        """A batch wants groups and members."""
        if self.batch is None or self.batch.request.batch != request.batch:
            self.batch = OpenBatchState(request=request)
            for cell in self.cells.in_role(CellRole.TRAINING):
                self._tell_batch("member_joined", self.cells.member(cell))
        self.dirty = True

    @workflow.signal
    def group_assigned(self, message: GroupAssigned) -> None:
        """A group's first micro-step was claimed (or it has none)."""
        self.accounts.assigned.add(message.group)
        if self.batch is not None and self.batch.request.batch == message.batch:
            assigned = tuple(sorted({*self.batch.assigned, message.group}))
            self.batch = self.batch.model_copy(update={"assigned": assigned})
        self.dirty = True

    @workflow.signal
    def batch_closed(self, message: BatchClosed) -> None:
        """A batch's update is committed: its groups are consumed."""
        self._end_batch(message.batch)

    @workflow.signal
    def batch_abandoned(self, message: BatchAbandoned) -> None:
        """The burst was cancelled: the groups of its batch are given up with it."""
        self._end_batch(message.batch)

    @workflow.signal
    def end_burst(self, message: EndBurst) -> None:
        """The last batch is closed: return the cells, publish."""
        self.ending = message
        self.dirty = True

    @workflow.signal
    def cancel_burst(self, message: CancelBurst) -> None:
        """Stop dispatching this burst, close what is queued, cancel what runs."""
        self.waiting = [waiting for waiting in self.waiting if waiting.spec.name != message.burst]
        if self.burst is not None and self.burst.name == message.burst:
            self.burst_cancelled = True
            cancelled = self.accounts.cancel_queued(message.burst)
            self._note("close", None, (f"burst {message.burst} cancelled: {cancelled} queued executions closed",))
            prefix = f"{self.run_name}/execution/{message.burst}/"
            running = tuple(sorted(name for name in self.accounts.roster if name.startswith(prefix)))
            cancel = CancelExecutions(executions=running, reason="burst cancelled")
            self._spawn(self._control(steps.CANCEL_EXECUTIONS, cancel), "cancel executions")
        elif self.opening is not None and self.opening.name == message.burst:
            self.cancelled_while_opening = True
        else:
            self._tell(message.burst, "burst_drained", BurstDrained(burst=message.burst))
        self.dirty = True

    @workflow.signal
    def cell_reported(self, report: CellReport) -> None:
        """A cell's role has settled, or its worker has booted."""
        before = self.cells.apply(report)
        if before is None:
            return
        if before.role is CellRole.TRAINING and (
            report.role is not CellRole.TRAINING or report.boot_epoch != before.boot_epoch
        ):
            left = Member(cell=report.cell, boot_epoch=before.boot_epoch, queue=before.queue)
            self._tell_batch("member_left", left)
        if report.role is CellRole.TRAINING:
            self._tell_batch("member_joined", self.cells.member(report.cell))
        if report.reason.startswith("rolled back"):
            self.cooldown_until = workflow.time() + COOLDOWN_SECONDS
        if report.reason or report.role is CellRole.PARKED:
            kind = "alarm" if report.role is CellRole.PARKED else "cell"
            self._note(kind, report.cell, (f"{report.role.value}: {report.reason}",))
        self.dirty = True

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
        upsert(PHASE.value_set("RUNNING"))
        self.next_sweep = workflow.time() + self.spec.sweep_seconds
        recheck: float | None = None
        while True:
            until_sweep = max(1.0, self.next_sweep - workflow.time())
            timeout = min(until_sweep, recheck) if recheck is not None else until_sweep
            await self._wait(timeout)
            if self.broken is not None:
                raise self.broken
            self.dirty = False
            recheck = self._act()
            if workflow.info().is_continue_as_new_suggested() and not self.jobs:
                if workflow.all_handlers_finished() and not self.dirty:
                    workflow.continue_as_new(self._carry())
                self.dirty = True

    async def _wait(self, timeout: float) -> None:
        try:
            await workflow.wait_condition(lambda: self.dirty, timeout=timeout, timeout_summary="re-evaluate")
        except TimeoutError:
            self.dirty = True

    def _act(self) -> float | None:
        """Do everything the books allow now; returns seconds after which time alone may change it."""
        rolling = workflow.info().is_continue_as_new_suggested()
        if self.ledger and not self.writing:
            self.writing = True
            self._spawn(self._write_ledger(), "write the ledger")
        if rolling:
            return None  # no new jobs: the books roll over as soon as the running ones are done
        if workflow.time() >= self.next_sweep:
            self.next_sweep = workflow.time() + self.spec.sweep_seconds
            if self.accounts.roster:
                self._spawn(self._sweep(), "sweep the roster")
        if self.burst is None and self.waiting and self.opening is None:
            self.opening = self.waiting.pop(0).spec
            self._spawn(self._open(self.opening), f"open burst {self.opening.name}")
        self._launch()
        if self.accounts.complete and not self.admitting:
            self.admitting = True
            self._spawn(self._admit(), "admit groups")
        self._feed_batch()
        self._end_if_over()
        return self._decide()

    def _launch(self) -> None:
        capacity = self.cells.capacity(self.weights.version)
        count = launchable(capacity, self.accounts.running, self.accounts.queued)
        taken = self.accounts.launch(count, workflow.time())
        for start in range(0, len(taken), LAUNCH_CHUNK):
            chunk = LaunchExecutions(executions=tuple(taken[start : start + LAUNCH_CHUNK]))
            self._spawn(self._control(steps.LAUNCH_EXECUTIONS, chunk), "launch executions")

    def _decide(self) -> float | None:
        if self.burst is None or self.burst.purpose is not Purpose.TRAIN or self.ending or self.burst_cancelled:
            self.hold = None
            return None
        state = self._policy_state()
        decision, self.hold = decide(state, self.hold)
        self._explain(decision, state)
        if decision.verdict is Verdict.MOVE and decision.cell is not None:
            self._move(decision.cell, Direction.TO_TRAINING, CellRole.TO_TRAINING)
            return None
        cooldown = self.cooldown_until - workflow.time()
        return decision.recheck_seconds or (cooldown if cooldown > 0 else None)

    def _explain(self, decision: Decision, state: PolicyState) -> None:
        """To the ledger: every move, and every refusal whose reason has changed."""
        key = f"{decision.verdict}/{decision.cell}/{decision.reason}"
        if decision.verdict is Verdict.MOVE or key != self.told:
            self._note(decision.verdict.value, decision.cell, (decision.reason.value, decision.detail), state)
        self.told = key

    # --- cells

    def _move(self, cell: int, direction: Direction, role: CellRole) -> None:
        peers = self.cells.peers(cell, self.weights.version) if direction is Direction.TO_TRAINING else {}
        self.cells.set_role(cell, role)
        self.moves += 1
        move = MoveCell(
            move=f"{self.run_name}/{self.moves}",
            direction=direction,
            weights=self.weights,
            peers=peers,
            kv_handoff=self.spec.kv_handoff,
        )
        self._signal(ids.cell_workflow_id(self.run_name, cell), "move", move)

    def _publish(self, ending: EndBurst) -> None:
        """Adopt the burst's version; satellites return, serving cells load it, the core stays if it may."""
        changed = ending.weights.version != self.weights.version
        self.weights = ending.weights
        self._note("publish", None, (f"version {self.weights.version}", "changed" if changed else "unchanged"))
        self.staying = self._core_stays()
        for cell, entry in sorted(self.cells.entries.items()):
            if entry.role is CellRole.TRAINING and not (cell == 0 and self.staying):
                self._note("return", cell, ("burst ended",))
                self._move(cell, Direction.TO_ROLLOUT, CellRole.TO_ROLLOUT)
            elif entry.role is not CellRole.TRAINING and changed:
                self._move(cell, Direction.PUBLISH, entry.role)

    def _core_stays(self) -> bool:
        burst = self.burst
        if burst is None or not burst.follows or self.burst_cancelled or self.cells.role(0) is not CellRole.TRAINING:
            return False
        groups = top_up(burst.quota, self.accounts.outstanding())
        state = after_publish(self._policy_state(), burst.groups_per_step)
        decision = core_may_stay(state, groups * burst.executions_per_group)
        stays = decision.verdict is Verdict.MOVE
        self._note("stay" if stays else "return", 0, (decision.reason.value, decision.detail), state)
        return stays

    def _end_if_over(self) -> None:
        """A burst that ends: publish once, then wait until no cell is on its way any more."""
        burst = self.burst
        if burst is None:
            return
        if burst.purpose is Purpose.EVALUATE:
            if not self.accounts.open_members(burst.name):
                self._close_burst(burst, self._evaluation(burst))
            return
        if self.burst_cancelled and self.ending is None:
            if self.batch is not None or self.accounts.open_members(burst.name):
                return
            self.ending = EndBurst(burst=burst.name, weights=self.weights)
        if self.ending is None:
            return
        if not self.publishing:
            self.publishing = True
            self._publish(self.ending)
        # A cell that was on its way into training when the burst ended is sent back at once.
        for cell in self.cells.in_role(CellRole.TRAINING):
            if not (cell == 0 and self.staying):
                self._move(cell, Direction.TO_ROLLOUT, CellRole.TO_ROLLOUT)
        serving = self.cells.serving(self.weights.version)
        if set(self.cells.in_role(CellRole.TO_TRAINING, CellRole.TO_ROLLOUT, CellRole.ROLLOUT)) == set(serving):
            absent = {cell: entry for cell, entry in self.cells.entries.items() if cell not in serving}
            published = BurstPublished(
                burst=burst.name,
                weights=self.weights,
                serving=serving,
                not_serving={cell: f"{entry.role.value} {entry.reason}".strip() for cell, entry in absent.items()},
            )
            self._close_burst(burst, published)

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
            self._tell(burst.name, "burst_published", answer)
        self.burst, self.ending, self.publishing, self.burst_cancelled = None, None, False, False
        self.dirty = True

    def _end_batch(self, batch: str) -> None:
        if self.batch is not None and self.batch.request.batch == batch:
            self.accounts.consume(self.batch.sent)
            self.batch = None
        self.dirty = True

    def _feed_batch(self) -> None:
        """Send the open batch its next groups, in order of admission."""
        batch = self.batch
        if batch is None:
            return
        for group in self.accounts.ready:
            name = ids.group_id(group.burst, group.group)
            if len(batch.sent) < batch.request.groups and name not in batch.sent:
                batch = batch.model_copy(update={"sent": (*batch.sent, name)})
                self._tell_batch("group_ready", group)
        self.batch = batch

    # --- jobs: side effects beside the main loop

    async def _open(self, spec: BurstSpec) -> None:
        """A burst's turn: draw its tasks, dispatch, answer."""
        key = f"{spec.tasks}/{spec.split}/{spec.seed}"
        train = spec.purpose is Purpose.TRAIN
        count = top_up(spec.quota, self.accounts.outstanding()) if train else spec.groups_per_step
        position = self.positions.get(key, 0) if train else 0
        request = SelectTasks(
            run=self.run_name,
            tasks=spec.tasks,
            split=spec.split,
            purpose=spec.purpose,
            seed=spec.seed,
            position=position,
            count=count,
        )
        try:
            drawn = await call(steps.SELECT_TASKS, request, queue=self.control, summary=f"tasks of {spec.name}")
        except ActivityError as error:
            self._tell(spec.name, "burst_refused", BurstRefused(burst=spec.name, reason=failure_text(error)))
            return
        finally:
            cancelled, self.opening = self.cancelled_while_opening, None
            self.cancelled_while_opening = False
        if cancelled:
            self._tell(spec.name, "burst_drained", BurstDrained(burst=spec.name))
            return
        if train:
            self.positions[key] = drawn.position
        executions = self.accounts.dispatch(spec, drawn.tasks, self.weights.version)
        self.burst = spec
        self._note("dispatch", None, (f"{spec.name}: {len(drawn.tasks)} groups, {executions} executions",))
        opened = BurstOpened(
            burst=spec.name,
            weights=self.weights,
            groups=len(drawn.tasks),
            outstanding=self.accounts.outstanding(),
            counters=self._counters(),
        )
        self._tell(spec.name, "burst_opened", opened)

    async def _admit(self) -> None:
        """Admit complete groups one after the other: their order is the order of training."""
        try:
            while self.accounts.complete:
                request = self.accounts.admission_of(self.accounts.complete[0], self.weights.version)
                admitted = await self.parked_call(
                    steps.ADMIT_GROUP,
                    request,
                    queue=self.control,
                    summary=f"admit {ids.group_id(request.burst, request.group)}",
                )
                self.accounts.admit(admitted, keep=not (request.training.refill and admitted.no_signal))
                self.dirty = True
        finally:
            self.admitting = False

    async def _sweep(self) -> None:
        """Close executions whose workflow is gone without a report (terminated, timed out, reset)."""
        old = workflow.time() - self.spec.sweep_seconds / 2
        names = tuple(sorted(name for name, launched_at in self.accounts.roster.items() if launched_at < old))
        swept = await call(steps.SWEEP_ROSTER, SweepRoster(executions=names), queue=self.control)
        for fate in swept.closed:
            if fate.execution not in self.accounts.roster:
                continue
            queue = ids.harness_queue(self.run_name)
            finish = self.accounts.finish_of(fate)
            await self.parked_call(steps.FINISH_EXECUTION, finish, queue=queue, summary=f"close {fate.execution}")
            self._note("close", None, (fate.execution, f"swept: workflow {fate.status}"))
            self.execution_closed(self.accounts.closed_of(fate))

    async def _write_ledger(self) -> None:
        try:
            while self.ledger:
                entries, self.ledger = tuple(self.ledger[:64]), self.ledger[64:]
                await self.parked_call(steps.RECORD_LEDGER, RecordLedger(entries=entries), queue=self.control)
        finally:
            self.writing = False
