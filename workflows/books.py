"""The Scheduler's state, and the few ways it speaks: ledger notes, signals, jobs.

Everything here is carried over when the Scheduler continues as new; `SchedulerState` is that layout.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from pydantic import Field
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows.accounts import Accounts, AccountsState
from workflows.cell_table import CellEntry, CellTable
from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.burst import BurstSpec, PolicySettings
from workflows.messages.control import LedgerEntry
from workflows.messages.execution import ExecutionClosed
from workflows.messages.fleet import CellRole
from workflows.messages.scheduling import EndBurst, OpenBatch, OpenBurst, RunSpec, Weights
from workflows.messages.transition import Direction, MoveCell
from workflows.parking import Parking, StepAborted, StepSkipped, call, failure_text
from workflows.policy.state import BatchView, Hold, PolicyState
from workflows.steps import Step


class OpenBatchState(Message):
    """The open batch as the Scheduler knows it. `sent`: its groups so far, in order of admission."""

    request: OpenBatch
    sent: tuple[str, ...] = ()
    assigned: tuple[str, ...] = ()


class SchedulerState(Message):
    """Start of a Scheduler, and what it carries over; `format` names this layout."""

    format: int = 1
    spec: RunSpec
    weights: Weights = Field(description="the published version")
    accounts: AccountsState = AccountsState()
    cells: tuple[CellEntry, ...]
    committed: Weights | None = Field(default=None, description="the newest committed version, if not yet published")
    burst: BurstSpec | None = None
    burst_run: str = Field(default="", description="run id of the burst's workflow")
    burst_cancelled: bool = False
    ending: EndBurst | None = None
    publishing: bool = False
    waiting: tuple[OpenBurst, ...] = ()
    batch: OpenBatchState | None = None
    positions: dict[str, int] = {}
    hold: Hold | None = None
    moves: int = 0
    entries: int = 0
    cooldown_until: float = 0.0
    next_sweep: float = 0.0
    staying: bool = False
    stay_until: float = 0.0
    refilled: int = Field(default=0, description="groups of this burst that were replaced")


class Books(Parking):
    """State and voice of the Scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self.spec, self.run_name = state.spec, state.spec.run
        self.weights, self.committed = state.weights, state.committed
        self.accounts = Accounts(state.spec.run, state.accounts)
        self.cells = CellTable(state.cells)
        self.burst: BurstSpec | None = state.burst
        self.burst_cancelled = state.burst_cancelled
        self.burst_run, self.refilled = state.burst_run, state.refilled
        self.ending, self.publishing = state.ending, state.publishing
        self.waiting = list(state.waiting)
        self.batch: OpenBatchState | None = state.batch
        self.positions = dict(state.positions)
        self.hold, self.staying, self.stay_until = state.hold, state.staying, state.stay_until
        self.moves, self.entries = state.moves, state.entries
        self.cooldown_until, self.next_sweep = state.cooldown_until, state.next_sweep
        self.control = ids.control_queue(self.run_name)
        self.ledger: list[LedgerEntry] = []
        self.told: str = ""
        self.jobs: set[asyncio.Task[None]] = set()
        self.broken: BaseException | None = None
        self.opening: OpenBurst | None = None
        self.cancelled_while_opening = self.admitting = self.sweeping = self.writing = False
        self.dirty = True
        self.roll_asked: float | None = None

    def _note(self, kind: str, cell: int | None, reasons: tuple[str, ...], state: PolicyState | None = None) -> None:
        self.entries += 1
        entry = LedgerEntry(
            run=self.run_name,
            at=workflow.time(),
            kind=kind,
            cell=cell,
            reasons=reasons,
            state=(state or self._policy_state()).model_dump(mode="json"),
            token=f"{self.run_name}/{self.entries}",
        )
        self.ledger.append(entry)
        self.dirty = True

    def _tell(self, burst: str, signal: str, message: Message) -> None:
        self._signal(ids.burst_id(self.run_name, burst), signal, message)

    def _tell_batch(self, signal: str, message: Message) -> None:
        if self.batch is not None:
            self._signal(self.batch.request.batch, signal, message)

    def _signal(self, workflow_id: str, signal: str, message: Message) -> None:
        handle = workflow.get_external_workflow_handle(workflow_id)
        self._spawn(handle.signal(signal, message), f"signal {signal} to {workflow_id}")

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
        if not self.accounts.close(closed):
            workflow.logger.info("ignored report of %s: not running here", closed.execution)
        self.dirty = True

    def _move(self, cell: int, direction: Direction, role: CellRole) -> None:
        """Ask a cell to change; its capacity is gone from now on."""
        peers = self.cells.peers(cell, self.weights.version) if direction is Direction.TO_TRAINING else {}
        self.cells.set_role(cell, role)
        self.moves += 1
        move = MoveCell(
            move=f"{self.run_name}/{self.moves}",
            boot_epoch=self.cells.entries[cell].boot_epoch,
            direction=direction,
            weights=self.weights,
            peers=peers,
            kv_handoff=self.spec.kv_handoff,
            publish="recompute" if self.burst is None else self.burst.publish,
        )
        self._spawn(self._send_move(cell, move), f"move cell {cell}")

    async def _send_move(self, cell: int, move: MoveCell) -> None:
        handle = workflow.get_external_workflow_handle(ids.cell_workflow_id(self.run_name, cell))
        try:
            await handle.signal("move", move)
        except ApplicationError as error:
            # Its workflow is gone. It is nobody's to wait for until it is started anew and reports.
            self.cells.set_role(cell, CellRole.LOST)
            self._note("alarm", cell, (f"lost: {failure_text(error)}",))

    async def _control(self, step: Step[Any, Any], argument: Message) -> None:
        """A step on the control queue, retried until it works."""
        await call(step, argument, queue=self.control)

    # --- what others see

    def _counters(self) -> dict[str, int]:
        books = self.accounts
        counters = {"dispatched": books.dispatched, "launched": books.launched, "finished": books.finished}
        return {**counters, **{f"position/{key}": value for key, value in sorted(self.positions.items())}}

    def _policy_state(self) -> PolicyState:
        batch, burst = self.batch, self.burst
        settings = batch.request.policy if batch else burst.policy if burst else PolicySettings()
        needed = batch.request.groups - len(set(batch.assigned)) if batch else 0
        return PolicyState(
            now=workflow.time(),
            dispatched=self.accounts.dispatched,
            launched=self.accounts.launched,
            finished=self.accounts.finished,
            cells=self.cells.views(self.weights.version),
            ready_unassigned=self.accounts.ready_unassigned,
            batch=BatchView(batch=batch.request.batch, needed=max(0, needed)) if batch else None,
            groups_per_step=burst.groups_per_step if burst else 0,
            supply_fraction=settings.supply_fraction,
            hold_seconds=settings.hold_seconds,
            move_under_way=bool(self.cells.in_role(CellRole.TO_TRAINING)) or workflow.time() < self.cooldown_until,
        )

    def _carry(self) -> SchedulerState:
        return SchedulerState(
            spec=self.spec,
            weights=self.weights,
            committed=self.committed,
            accounts=self.accounts.carry(),
            cells=self.cells.carry(),
            burst=self.burst,
            burst_run=self.burst_run,
            burst_cancelled=self.burst_cancelled,
            ending=self.ending,
            publishing=self.publishing,
            waiting=tuple(self.waiting),
            batch=self.batch,
            positions=self.positions,
            hold=self.hold,
            moves=self.moves,
            entries=self.entries,
            cooldown_until=self.cooldown_until,
            next_sweep=self.next_sweep,
            staying=self.staying,
            stay_until=self.stay_until,
            refilled=self.refilled,
        )
