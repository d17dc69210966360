"""The Scheduler's state, and the few ways it speaks: ledger notes, signals, jobs.

Everything here is carried over when the Scheduler continues as new; `SchedulerState` is that layout.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from pydantic import Field
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows.accounts import Accounts, AccountsState
from workflows.cell_table import CellEntry, CellTable
from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.burst import BurstSpec, Purpose
from workflows.messages.carried import Carried, Upgrade
from workflows.messages.control import LedgerEntry
from workflows.messages.execution import ExecutionClosed
from workflows.messages.fleet import CellRole
from workflows.messages.policies import PolicySettings
from workflows.messages.scheduling import EndBurst, OpenBatch, OpenBurst, RunSpec, Weights
from workflows.messages.transition import Direction
from workflows.parking import Parking, StepAborted, StepSkipped, call, failure_text, first_number
from workflows.policy.memory import Memory
from workflows.policy.safe_mode import SafeMode
from workflows.policy.state import BatchView, Decision, PolicyState
from workflows.steps import Step
from workflows.telemetry import Telemetry, with_load


class OpenBatchState(Message):
    """The open batch as the Scheduler knows it. `sent`: its groups so far, in order of admission. `held`: it was opened
    while the core leaves, and begins under the next one."""

    request: OpenBatch
    sent: tuple[str, ...] = ()
    assigned: tuple[str, ...] = ()
    held: bool = False


class CellMove(Message):
    """A cell on its way: which move it was asked to make, in which of its boots."""

    cell: int
    move: str
    boot_epoch: int


class PendingMove(Message):
    """A decision that is being carried out: `cells` have not arrived yet. `token`: its entry in the ledger.

    `gain_seconds`: of one iteration, as predicted; `before_seconds`: what an iteration took until then.
    """

    token: str
    direction: Direction
    cells: tuple[CellMove, ...]
    started_at: float
    failed: bool = False
    gain_seconds: float | None = None
    before_seconds: float | None = None


class Judgement(Message):
    """A move that is done and has promised something: judged when the next whole iteration is over."""

    token: str
    gain_seconds: float
    before_seconds: float
    whole: bool = Field(default=False, description="the iteration in which it moved is over")


class HandOver(Message):
    """The core is to leave. `heir`: the cell that was asked to take over, and has not answered yet.

    `failed`: those that were asked and could not, left alone until `again_at`; `tried`: somebody was; `told`: nobody
    can, and it was said.
    """

    heir: CellMove | None = None
    begun_at: float = 0.0
    failed: tuple[int, ...] = ()
    again_at: float = 0.0
    tried: bool = False
    told: bool = False


class Slots(Message):
    """Processor slots as they are shared out, by the names of their components; `change` counts."""

    harness: int
    evaluator: int
    change: int = 0


class SchedulerState(Carried):
    """Start of a Scheduler, and what it carries over. Format 2: the load that executions met."""

    upgrades: ClassVar[tuple[Upgrade, ...]] = (with_load,)

    format: int = 2
    spec: RunSpec
    weights: Weights = Field(description="the published version")
    accounts: AccountsState = AccountsState()
    cells: tuple[CellEntry, ...]
    core: int = Field(default=0, description="the cell that holds the optimizer")
    change: int = Field(default=0, description="how often the core was handed over")
    hand_over: HandOver | None = None
    committed: Weights | None = Field(default=None, description="the newest committed version, if not yet published")
    burst: BurstSpec | None = None
    burst_run: str = Field(default="", description="run id of the burst's workflow")
    burst_cancelled: bool = False
    ending: EndBurst | None = None
    publishing: bool = False
    waiting: tuple[OpenBurst, ...] = ()
    batch: OpenBatchState | None = None
    positions: dict[str, int] = {}
    memory: Memory = Memory()
    mode: SafeMode = SafeMode()
    telemetry: Telemetry = Telemetry()
    pending: tuple[PendingMove, ...] = ()
    judging: tuple[Judgement, ...] = ()
    slots: Slots | None = None
    reclaimed: tuple[int, ...] = Field(default=(), description="cells that have left the fleet")
    moves: int = Field(default=0, description="number of the last move; 0: this Scheduler begins anew")
    entries: int = Field(default=0, description="number of the last entry in the ledger; 0: as above")
    told: str = Field(default="", description="the refusal that the ledger has; it is written again when it changes")
    cooldown_until: float = 0.0
    next_sweep: float = 0.0
    staying: tuple[int, ...] = Field(default=(), description="cells that train on after the last burst")
    stay_until: float = 0.0
    refilled: int = Field(default=0, description="groups of this burst that were replaced")


class Books(Parking):
    """State and voice of the Scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self.spec, self.run_name = state.spec, state.spec.run
        self.weights, self.committed = state.weights, state.committed
        self.accounts = Accounts(state.spec.run, state.accounts)
        self.cells = CellTable(state.cells, state.core, state.change)
        self.hand_over, self.naming = state.hand_over, False
        self.cells.core_stays = state.hand_over is not None and state.hand_over.told
        self.burst: BurstSpec | None = state.burst
        self.burst_cancelled = state.burst_cancelled
        self.burst_run, self.refilled = state.burst_run, state.refilled
        self.ending, self.publishing = state.ending, state.publishing
        self.waiting = list(state.waiting)
        self.batch: OpenBatchState | None = state.batch
        self.positions = dict(state.positions)
        self.memory, self.mode, self.telemetry = state.memory, state.mode, state.telemetry
        self.pending, self.judging, self.slots = list(state.pending), list(state.judging), state.slots
        self.reclaimed = set(state.reclaimed)
        self.staying, self.stay_until = state.staying, state.stay_until
        self.moves, self.entries = state.moves or first_number(), state.entries or first_number()
        self.cooldown_until, self.next_sweep = state.cooldown_until, state.next_sweep
        self.control = ids.control_queue(self.run_name)
        self.ledger: list[LedgerEntry] = []
        self.told = state.told
        self.jobs: set[asyncio.Task[None]] = set()
        self.voice = asyncio.Lock()
        self.broken: BaseException | None = None
        self.opening: OpenBurst | None = None
        self.cancelled_while_opening = self.admitting = self.sweeping = self.writing = self.measuring = False
        self.next_sample = 0.0
        self.looking, self.looked = set[int](), dict[int, float]()
        self.dirty = True
        self.roll_asked: float | None = None

    def _note(
        self, kind: str, cell: int | None, reasons: tuple[str, ...], state: PolicyState | None = None, **more: Any
    ) -> str:
        """An entry for the ledger; returns its token. `more`: other fields of the entry."""
        self.entries += 1
        entry = LedgerEntry(
            run=self.run_name,
            at=workflow.time(),
            kind=kind,
            cell=cell,
            reasons=reasons,
            state=(state or self._policy_state()).model_dump(mode="json", exclude={"throughput"}),
            token=f"{self.run_name}/{self.entries}",
            **more,
        )
        self.ledger.append(entry)
        self.dirty = True
        return entry.token

    def _note_decision(self, kind: str, decision: Decision, state: PolicyState) -> str:
        """The entry of what a policy decided or refused, with what it predicted."""
        plan = decision.plan
        return self._note(
            kind,
            decision.cell,
            (decision.reason.value, decision.detail),
            state,
            policy=self._policy().name,
            direction=decision.direction if decision.cell is not None else None,
            together=decision.together,
            bottleneck=decision.bottleneck,
            expected_gain_seconds=decision.expected_gain_seconds,
            iteration_seconds=plan.seconds_before if plan else None,
            migration_seconds=plan.migration_seconds if plan else None,
        )

    def _tell(self, burst: str, signal: str, message: Message) -> None:
        self._signal(ids.burst_id(self.run_name, burst), signal, message)

    def _tell_batch(self, signal: str, message: Message) -> None:
        if self.batch is not None:
            self._signal(self.batch.request.batch, signal, message)

    def _signal(self, workflow_id: str, signal: str, message: Message) -> None:
        self._spawn(self._send(workflow_id, signal, message), f"signal {signal} to {workflow_id}")

    async def _send(self, workflow_id: str, signal: str, message: Message) -> None:
        """One at a time: signals that are under way together may overtake each other."""
        async with self.voice:
            await workflow.get_external_workflow_handle(workflow_id).signal(signal, message)

    def _spawn(self, job: Coroutine[Any, Any, Any], what: str) -> None:
        """Run a job beside the main loop. One that fails for good leaves an alarm, never a stopped scheduler."""
        task = asyncio.create_task(self._guarded(job, what))
        self.jobs.add(task)
        task.add_done_callback(self._job_done)

    async def _guarded(self, job: Coroutine[Any, Any, Any], what: str) -> None:
        try:
            await job
        except (ActivityError, ApplicationError, StepSkipped, StepAborted) as error:
            self._alarm(what, failure_text(error))

    def _alarm(self, *reasons: str) -> None:
        self._note("alarm", None, reasons)

    def _job_done(self, task: asyncio.Task[None]) -> None:
        self.jobs.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.broken = task.exception()  # a bug of ours: the main loop raises it, so that it shows in the web UI
        self.dirty = True

    def _close(self, closed: ExecutionClosed) -> None:
        if self.accounts.close(closed):
            self.telemetry = self.telemetry.closed(closed)
        else:
            workflow.logger.info("ignored report of %s: not running here", closed.execution)
        self.dirty = True

    async def _control(self, step: Step[Any, Any], argument: Message) -> None:
        """A step on the control queue, retried until it works."""
        await call(step, argument, queue=self.control)

    # --- what others see

    def _counters(self) -> dict[str, int]:
        books = self.accounts
        counters = {"dispatched": books.dispatched, "launched": books.launched, "finished": books.finished}
        return {**counters, **{f"position/{key}": value for key, value in sorted(self.positions.items())}}

    def _policy(self) -> PolicySettings:
        """The settings that count now: those of the open batch, of the burst, the defaults."""
        if self.batch is not None:
            return self.batch.request.policy
        return self.burst.policy if self.burst is not None else PolicySettings()

    def _policy_state(self) -> PolicyState:
        batch, burst, settings = self.batch, self.burst, self._policy()
        needed = max(0, batch.request.groups - len(set(batch.assigned))) if batch else 0
        cells = self.cells.views(self.weights.version)
        whole = settings.shuffle or settings.name == "colocate" or (len(cells) == 1 and settings.name != "waterlevel")
        slots = self._slots()
        measured = settings.name == "throughput" and burst is not None and burst.purpose is Purpose.TRAIN
        return PolicyState(
            now=workflow.time(),
            dispatched=self.accounts.dispatched,
            launched=self.accounts.launched,
            finished=self.accounts.finished,
            cells=cells,
            ready_unassigned=self.accounts.ready_unassigned,
            batch=BatchView(batch=batch.request.batch, needed=needed) if batch else None,
            groups_per_step=burst.groups_per_step if burst else 0,
            supply_fraction=settings.supply_fraction,
            hold_seconds=settings.hold_seconds,
            move_under_way=self._is_moving(),
            streaming=settings.streaming,
            burst_needed=needed + batch.request.later_groups if batch and whole else None,
            split=settings.split or max(1, len(cells) // 2),
            bounds=settings.bounds.within(self.spec.bounds),
            components=self.telemetry.components(
                cells,
                running=self.accounts.running,
                groups=burst.groups_per_step,
                executions_per_group=burst.executions_per_group,
                harness_slots=slots.harness,
                evaluator_slots=slots.evaluator,
            )
            if measured and burst is not None
            else (),
            throughput=settings.throughput,
        )

    def _is_moving(self) -> bool:
        """Whether nobody else may be sent away now."""
        handing_over = self.hand_over is not None and self.hand_over.heir is not None
        on_its_way = bool(self.cells.in_role(CellRole.TO_TRAINING))
        return on_its_way or handing_over or workflow.time() < self.cooldown_until

    def _slots(self) -> Slots:
        """Processor slots as they are shared out now; 0: not the Scheduler's to share out."""
        return self.slots or Slots(harness=self.spec.harness_slots, evaluator=self.spec.evaluator_slots)

    def _carry(self) -> SchedulerState:
        return SchedulerState(
            spec=self.spec,
            weights=self.weights,
            committed=self.committed,
            accounts=self.accounts.carry(),
            cells=self.cells.carry(),
            core=self.cells.core,
            change=self.cells.change,
            hand_over=self.hand_over,
            burst=self.burst,
            burst_run=self.burst_run,
            burst_cancelled=self.burst_cancelled,
            ending=self.ending,
            publishing=self.publishing,
            waiting=tuple(self.waiting),
            batch=self.batch,
            positions=self.positions,
            memory=self.memory,
            mode=self.mode,
            telemetry=self.telemetry,
            pending=tuple(self.pending),
            judging=tuple(self.judging),
            slots=self.slots,
            reclaimed=tuple(sorted(self.reclaimed)),
            moves=self.moves,
            entries=self.entries,
            cooldown_until=self.cooldown_until,
            next_sweep=self.next_sweep,
            staying=self.staying,
            stay_until=self.stay_until,
            refilled=self.refilled,
            told=self.told,
        )
