"""Cell: one per cell of the fleet, alive for the whole run; serialises the cell's role changes.

It knows which boot of its worker is the living one, starts one RoleTransition at a time, and reports every settled
role to the Scheduler. A newer boot supersedes whatever was going on: the cell starts over with a `boot` transition.
Where a transition cannot go on or back it ends the boot it works on, once: the next boot brings the cell to rollout,
and the Scheduler decides anew. When a transition parks, the cell waits for an operator (`resolve_step`) or for a new
boot of its worker. A cell that has left the fleet ends.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from pydantic import Field
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from workflows.messages import ids
from workflows.messages.burst import PublishMode
from workflows.messages.carried import Carried
from workflows.messages.fleet import (
    COULD_NOT_LEAVE,
    COULD_NOT_TAKE_OVER,
    REBOOTS,
    CellReport,
    CellRole,
    CellSpec,
    CellWorkerUp,
)
from workflows.messages.scheduling import Weights
from workflows.messages.transition import (
    Direction,
    MoveCell,
    Resolution,
    TransitionReport,
    TransitionResult,
    TransitionSpec,
)
from workflows.parking import Parking, failure_text, first_number, upsert
from workflows.transition import RoleTransition

CELL = SearchAttributeKey.for_keyword("Cell")
ROLE = SearchAttributeKey.for_keyword("Role")

REBOOT_SECONDS = 600.0
"""How long a cell that reboots is waited for before somebody is asked."""
REPORT_SECONDS = 15.0
"""Between attempts to reach a Scheduler that is not there."""

SETTLED: Mapping[Direction, CellRole] = {
    Direction.BOOT: CellRole.ROLLOUT,
    Direction.PUBLISH: CellRole.ROLLOUT,
    Direction.TO_ROLLOUT: CellRole.ROLLOUT,
    Direction.TO_TRAINING: CellRole.TRAINING,
    Direction.RETIRE: CellRole.RETIRED,
}
"""The role after a transition that was done."""


class CellState(Carried):
    """Start of a Cell, and what it carries over when it continues as new."""

    run: str
    spec: CellSpec
    weights: Weights
    role: CellRole = CellRole.STARTING
    boot: CellWorkerUp | None = None
    loaded: Weights | None = Field(default=None, description="what its engine serves, when in rollout")
    lease: int = Field(default=0, description="number of the last transition; 0: this Cell begins anew")
    unreported: CellReport | None = Field(default=None, description="the Scheduler could not be told")
    reboots: bool = Field(default=False, description="reboot, once, where a role change fails for good")
    rebooted: tuple[Direction, ...] = Field(default=(), description="role changes it was tried for, not done since")
    waiting: tuple[MoveCell, ...] = ()
    seen: tuple[str, ...] = Field(default=(), description="moves already taken, newest last, bounded")


WAY_BACK: Mapping[Direction, Direction] = {
    Direction.BOOT: Direction.BOOT,
    Direction.PUBLISH: Direction.BOOT,
    Direction.TO_ROLLOUT: Direction.TO_ROLLOUT,
    Direction.TO_TRAINING: Direction.TO_ROLLOUT,
    Direction.RETIRE: Direction.TO_ROLLOUT,
}
"""What brings a cell back to rollout after a parked transition was given up."""


@workflow.defn
class Cell(Parking):
    """One cell's durable self."""

    @workflow.init
    def __init__(self, state: CellState) -> None:
        self.run_name, self.spec, self.weights = state.run, state.spec, state.weights
        self.role, self.boot, self.lease = state.role, state.boot, state.lease or first_number()
        self.waiting = list(state.waiting)
        self.seen = list(state.seen)
        self.loaded, self.unreported = state.loaded, state.unreported
        self.reboots, self.rebooted = state.reboots, state.rebooted
        self.new_boot: CellWorkerUp | None = None

    @workflow.signal
    def worker_up(self, boot: CellWorkerUp) -> None:
        """A cell worker has booted; older boots than the one known are ignored."""
        known = max((b.boot_epoch for b in (self.boot, self.new_boot) if b is not None), default=-1)
        if boot.boot_epoch > known:
            self.new_boot = boot

    @workflow.signal
    def move(self, move: MoveCell) -> None:
        """Change role or serve a new version; a repeated `move` id is ignored."""
        if move.move not in self.seen:
            self.seen = [*self.seen[-63:], move.move]
            self.waiting.append(move)

    @workflow.query
    def state(self) -> CellState:
        """The cell as it is now."""
        return self._carry()

    @workflow.run
    async def run(self, state: CellState) -> None:
        upsert(CELL.value_set(f"cell-{self.spec.index}"))
        self.enter_phase("READY")
        while self.role is not CellRole.RETIRED or self.unreported is not None:
            await self._wait()
            if self.role is CellRole.RETIRED and self.unreported is not None:
                await self._tell(self.unreported)
            elif self.new_boot is not None:
                await self._boot()
            elif self._rolls():
                workflow.continue_as_new(self._carry())  # before the next move: a backlog must not put it off
            elif self.waiting:
                await self._take(self.waiting.pop(0))
            elif self.unreported is not None:
                await self._tell(self.unreported)

    async def _wait(self) -> None:
        """Until there is something to do, or it is time to try again to tell the Scheduler."""
        retry = REPORT_SECONDS if self.unreported is not None else None
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: (
                    self.role is not CellRole.RETIRED
                    and (bool(self.waiting) or self.new_boot is not None or self._rolls())
                ),
                timeout=retry,
                timeout_summary="report again",
            )

    def _rolls(self) -> bool:
        return workflow.info().is_continue_as_new_suggested() and workflow.all_handlers_finished()

    async def _boot(self) -> None:
        self.boot, self.new_boot = self.new_boot, None
        # Moves asked of the boot before are void; only the newest weights they named still count.
        self.weights = max((self.weights, *(move.weights for move in self.waiting)), key=lambda w: w.version)
        self.loaded = None
        self.waiting.clear()
        await self._report(CellRole.STARTING, "", "the cell worker booted")
        await self._change(Direction.BOOT, "", {}, handoff=False)

    async def _take(self, move: MoveCell) -> None:
        if move.weights.version > self.weights.version:  # two signals may overtake each other; versions only rise
            self.weights = move.weights
        if move.direction is Direction.PUBLISH:
            if self.role is not CellRole.ROLLOUT:
                return  # a boot, a return or a resumption will load the newest weights anyway
            if self.loaded == self.weights:
                await self._report(CellRole.ROLLOUT, move.move, "")
                return
        elif move.boot_epoch and self.boot is not None and move.boot_epoch != self.boot.boot_epoch:
            return  # asked of a boot that is gone; this one has reported, or will
        if move.direction is Direction.TAKE_OVER:
            await self._take_over(move)
            return
        if move.direction is Direction.RETIRE and self.role not in (CellRole.ROLLOUT, CellRole.TRAINING):
            await self._report(CellRole.RETIRED, move.move, f"was {self.role.value}")
            return
        if move.direction is Direction.TO_TRAINING and self.role is not CellRole.ROLLOUT:
            await self._report(self.role, move.move, f"cannot leave rollout: is {self.role.value}")
            return
        if move.direction is Direction.TO_ROLLOUT and self.role is not CellRole.TRAINING:
            await self._report(self.role, move.move, f"cannot leave training: is {self.role.value}")
            return
        await self._change(
            move.direction,
            move.move,
            move.peers,
            handoff=move.kv_handoff,
            publish=move.publish,
            leaves_at=move.leaves_at,
            led=move.led,
        )

    async def _take_over(self, move: MoveCell) -> None:
        """Become the core, beside whatever the cell does: it serves or trains on, also when that fails."""
        reason = f"is {self.role.value}"
        if self.role in (CellRole.ROLLOUT, CellRole.TRAINING):
            report = await self._transition(Direction.TAKE_OVER, {}, handoff=False, committed=move.committed)
            if report.result is TransitionResult.SUPERSEDED:
                return
            reason = "" if report.result is TransitionResult.DONE else report.reason or report.result.value
        await self._report(self.role, move.move, f"{COULD_NOT_TAKE_OVER}: {reason}" if reason else "")

    async def _change(
        self,
        direction: Direction,
        move: str,
        peers: dict[str, str],
        *,
        handoff: bool,
        publish: PublishMode = "recompute",
        leaves_at: float | None = None,
        led: bool = False,
    ) -> None:
        """Run transitions until the role has settled, the cell is parked for good, or a newer boot interrupts."""
        trains = self.role is CellRole.TRAINING
        while True:
            report = await self._transition(
                direction, peers, handoff=handoff, publish=publish, trains=trains, leaves_at=leaves_at, led=led
            )
            match report.result:
                case TransitionResult.DONE:
                    leaves = direction in (Direction.TO_TRAINING, Direction.RETIRE)
                    self.loaded = None if leaves else self.weights
                    self.rebooted = tuple(other for other in self.rebooted if other is not direction)
                    await self._report(SETTLED[direction], move, report.reason)
                    return
                case TransitionResult.ROLLED_BACK:
                    what = COULD_NOT_LEAVE if direction is Direction.RETIRE else "rolled back"
                    await self._report(CellRole.ROLLOUT, move, f"{what}: {report.reason}")
                    return
                case TransitionResult.SUPERSEDED:
                    return
                case TransitionResult.REBOOTED:
                    if await self._reboots(direction, move, report.reason):
                        return
                    late = f"{report.reason}; no boot in {REBOOT_SECONDS:g} s"
                    report = report.model_copy(update={"reason": late})
                    await self._report(CellRole.PARKED, move, late)
                case TransitionResult.PARKED:
                    await self._report(CellRole.PARKED, move, report.reason)
            lost = f"{self.spec.slots} rollout slots are missing while it is parked. {report.reason}"
            resolution = await self.park(direction.value, lost, lambda: self.new_boot is not None or self._retires())
            if resolution is None:
                return
            if resolution is not Resolution.RETRY:
                direction, peers, handoff = WAY_BACK[direction], {}, False

    async def _reboots(self, direction: Direction, move: str, reason: str) -> bool:
        """Wait for the boot that was asked for; whether there is something else to do now than to ask an operator."""
        self.rebooted = (*self.rebooted, direction)
        await self._report(CellRole.STARTING, move, f"{REBOOTS}: {reason}")
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self.new_boot is not None or self._retires(),
                timeout=REBOOT_SECONDS,
                timeout_summary="its next boot",
            )
        return self.new_boot is not None or self._retires()

    def _may_reboot(self, direction: Direction) -> bool:
        """Once for each role change until that is done, and not where the reboot itself is what fails."""
        if direction is Direction.BOOT:
            return self.reboots and not self.rebooted
        return self.reboots and direction is not Direction.RETIRE and direction not in self.rebooted

    def _retires(self) -> bool:
        """The cell was asked to leave the fleet: then nothing has to be put right any more."""
        return any(move.direction is Direction.RETIRE for move in self.waiting)

    async def _transition(
        self,
        direction: Direction,
        peers: dict[str, str],
        *,
        handoff: bool,
        publish: PublishMode = "recompute",
        trains: bool = False,
        leaves_at: float | None = None,
        led: bool = False,
        committed: Weights | None = None,
    ) -> TransitionReport:
        boot = self.boot
        if boot is None:
            raise ApplicationError("a transition needs a booted worker", type="NoBoot", non_retryable=True)
        self.lease += 1
        if direction is Direction.TO_TRAINING:
            self._show(CellRole.TO_TRAINING)
        elif direction is Direction.TO_ROLLOUT:
            self._show(CellRole.TO_ROLLOUT)
        elif direction is Direction.RETIRE:
            self._show(CellRole.RETIRING)
        spec = TransitionSpec(
            run=self.run_name,
            cell=self.spec,
            lease=self.lease,
            boot_epoch=boot.boot_epoch,
            queue=boot.queue,
            engine_url=boot.engine_url,
            direction=direction,
            weights=self.weights,
            peers=peers,
            kv_handoff=handoff,
            publish=publish,
            trains=trains and direction is Direction.RETIRE,
            leaves_at=leaves_at if direction is Direction.RETIRE else None,
            may_reboot=self._may_reboot(direction),
            led=led and direction is Direction.RETIRE,
            committed=committed,
        )
        try:
            return await self._run_transition(spec)
        except (ChildWorkflowError, WorkflowAlreadyStartedError) as error:
            # Terminated, cancelled or broken: how far it came is unknown, so an operator (or a new boot) decides.
            return TransitionReport(
                transition=ids.transition_id(self.run_name, self.spec.index, self.lease),
                run=self.run_name,
                cell=self.spec.index,
                direction=direction,
                result=TransitionResult.PARKED,
                started_at=workflow.time(),
                ended_at=workflow.time(),
                steps=(),
                reason=f"the transition ended without a result: {failure_text(error)}",
            )

    async def _run_transition(self, spec: TransitionSpec) -> TransitionReport:
        child = await workflow.start_child_workflow(
            RoleTransition.run,
            spec,
            id=ids.transition_id(self.run_name, self.spec.index, self.lease),
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=f"cell {self.spec.index}: {spec.direction.value.replace('_', ' ')}",
        )
        done = asyncio.ensure_future(child)
        await workflow.wait_condition(lambda: done.done() or self.new_boot is not None)
        if not done.done():
            with contextlib.suppress(ApplicationError):  # it may have ended in the same moment
                await child.signal(RoleTransition.supersede)
        return await done

    async def _report(self, role: CellRole, move: str, reason: str) -> None:
        self._show(role)
        report = CellReport(
            cell=self.spec.index,
            boot_epoch=self.boot.boot_epoch if self.boot else 0,
            role=role,
            version=self.loaded.version if role is CellRole.ROLLOUT and self.loaded is not None else None,
            queue=self.boot.queue if self.boot else "",
            move=move,
            reason=reason[:500],
        )
        await self._tell(report)

    async def _tell(self, report: CellReport) -> None:
        """Tell the Scheduler; when there is none at the moment, later."""
        scheduler = workflow.get_external_workflow_handle(ids.scheduler_id(self.run_name))
        try:
            await scheduler.signal("cell_reported", report)
            self.unreported = None
        except ApplicationError as error:
            workflow.logger.warning("the scheduler was not told: %s", failure_text(error))
            self.unreported = report

    def _show(self, role: CellRole) -> None:
        if role is not self.role:
            self.role = role
            upsert(ROLE.value_set(role.value))

    def _carry(self) -> CellState:
        return CellState(
            run=self.run_name,
            spec=self.spec,
            weights=self.weights,
            role=self.role,
            boot=self.boot,
            loaded=self.loaded,
            lease=self.lease,
            unreported=self.unreported,
            reboots=self.reboots,
            rebooted=self.rebooted,
            waiting=tuple(self.waiting),
            seen=tuple(self.seen),
        )
