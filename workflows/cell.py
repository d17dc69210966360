"""Cell: one per cell of the fleet, alive for the whole run; serialises the cell's role changes.

It knows which boot of its worker is the living one, starts one RoleTransition at a time, and reports every settled
role to the Scheduler. A newer boot supersedes whatever was going on: the cell starts over with a `boot` transition.
When a transition parks, the cell waits for an operator (`resolve_step`) or for a new boot of its worker.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from pydantic import Field
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError
from temporalio.workflow import ParentClosePolicy

from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.fleet import CellReport, CellRole, CellSpec, CellWorkerUp
from workflows.messages.scheduling import Weights
from workflows.messages.transition import (
    Direction,
    MoveCell,
    Resolution,
    TransitionReport,
    TransitionResult,
    TransitionSpec,
)
from workflows.parking import PHASE, Parking, upsert
from workflows.transition import RoleTransition

CELL = SearchAttributeKey.for_keyword("Cell")
ROLE = SearchAttributeKey.for_keyword("Role")

SETTLED: Mapping[Direction, CellRole] = {
    Direction.BOOT: CellRole.ROLLOUT,
    Direction.PUBLISH: CellRole.ROLLOUT,
    Direction.TO_ROLLOUT: CellRole.ROLLOUT,
    Direction.TO_TRAINING: CellRole.TRAINING,
}
"""The role after a transition that was done."""


class CellState(Message):
    """Start of a Cell, and what it carries over when it continues as new."""

    run: str
    spec: CellSpec
    weights: Weights
    role: CellRole = CellRole.STARTING
    boot: CellWorkerUp | None = None
    lease: int = 0
    waiting: tuple[MoveCell, ...] = ()
    seen: tuple[str, ...] = Field(default=(), description="moves already taken, newest last, bounded")


@workflow.defn
class Cell(Parking):
    """One cell's durable self."""

    @workflow.init
    def __init__(self, state: CellState) -> None:
        self.run_name, self.spec, self.weights = state.run, state.spec, state.weights
        self.role, self.boot, self.lease = state.role, state.boot, state.lease
        self.waiting = list(state.waiting)
        self.seen = list(state.seen)
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
        upsert(CELL.value_set(f"cell-{self.spec.index}"), PHASE.value_set("READY"))
        while True:
            await workflow.wait_condition(lambda: bool(self.waiting) or self.new_boot is not None or self._rolls())
            if self.new_boot is not None:
                await self._boot()
            elif self.waiting:
                await self._take(self.waiting.pop(0))
            elif workflow.all_handlers_finished():
                workflow.continue_as_new(self._carry())
            else:
                await workflow.wait_condition(workflow.all_handlers_finished)

    async def _boot(self) -> None:
        self.boot, self.new_boot = self.new_boot, None
        # Moves asked of the boot before are void; only the newest weights they named still count.
        self.weights = max((self.weights, *(move.weights for move in self.waiting)), key=lambda w: w.version)
        self.waiting.clear()
        await self._report(CellRole.STARTING, "", "the cell worker booted")
        await self._change(Direction.BOOT, "", {}, handoff=False)

    async def _take(self, move: MoveCell) -> None:
        self.weights = move.weights
        if move.direction is Direction.PUBLISH and self.role is not CellRole.ROLLOUT:
            return  # a boot, a return or a resumption will load the newest weights anyway
        if move.direction is Direction.TO_TRAINING and self.role is not CellRole.ROLLOUT:
            await self._report(self.role, move.move, f"cannot leave rollout: is {self.role.value}")
            return
        if move.direction is Direction.TO_ROLLOUT and self.role is not CellRole.TRAINING:
            await self._report(self.role, move.move, f"cannot leave training: is {self.role.value}")
            return
        await self._change(move.direction, move.move, move.peers, handoff=move.kv_handoff)

    async def _change(self, direction: Direction, move: str, peers: dict[str, str], *, handoff: bool) -> None:
        """Run transitions until the role has settled, the cell is parked for good, or a newer boot interrupts."""
        while True:
            report = await self._transition(direction, peers, handoff=handoff)
            match report.result:
                case TransitionResult.DONE:
                    await self._report(SETTLED[direction], move, "")
                    return
                case TransitionResult.ROLLED_BACK:
                    await self._report(CellRole.ROLLOUT, move, f"rolled back: {report.reason}")
                    return
                case TransitionResult.SUPERSEDED:
                    return
                case TransitionResult.PARKED:
                    await self._report(CellRole.PARKED, move, report.reason)
            lost = f"{self.spec.slots} rollout slots are missing while it is parked. {report.reason}"
            resolution = await self.park(direction.value, lost, lambda: self.new_boot is not None)
            if resolution is None:
                return
            if resolution is not Resolution.RETRY:
                direction, peers, handoff = Direction.BOOT, {}, False

    async def _transition(self, direction: Direction, peers: dict[str, str], *, handoff: bool) -> TransitionReport:
        boot = self.boot
        if boot is None:
            raise ApplicationError("a transition needs a booted worker", type="NoBoot", non_retryable=True)
        self.lease += 1
        if direction is Direction.TO_TRAINING:
            self._show(CellRole.TO_TRAINING)
        elif direction is Direction.TO_ROLLOUT:
            self._show(CellRole.TO_ROLLOUT)
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
        )
        child = await workflow.start_child_workflow(
            RoleTransition.run,
            spec,
            id=ids.transition_id(self.run_name, self.spec.index, self.lease),
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=f"cell {self.spec.index}: {direction.value.replace('_', ' ')}",
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
            version=self.weights.version if role is CellRole.ROLLOUT else None,
            queue=self.boot.queue if self.boot else "",
            move=move,
            reason=reason[:500],
        )
        await workflow.get_external_workflow_handle(ids.scheduler_id(self.run_name)).signal("cell_reported", report)

    def _show(self, role: CellRole) -> None:
        if role is not self.role:
            self.role = role
            upsert(ROLE.value_set(role.value))

    def _rolls(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    def _carry(self) -> CellState:
        return CellState(
            run=self.run_name,
            spec=self.spec,
            weights=self.weights,
            role=self.role,
            boot=self.boot,
            lease=self.lease,
            waiting=tuple(self.waiting),
            seen=tuple(self.seen),
        )
