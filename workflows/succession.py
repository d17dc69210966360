"""The core is handed over: another cell takes its weights, its optimizer state and its place, then the old one may go.

What is handed over is the last committed set. At a batch's boundary nothing else exists, so that is where it is done:
a core that is to leave ends its open batch, and one that is opened meanwhile is held, without members and groups, until
there is a new core. When its deadline comes first, or the core does not train, the hand-over is made at once; what the
two cells had accumulated for an open batch is computed again, as after a lost core.

    reclaimed -> boundary (or deadline) -> the heir takes over -> it is named here, and on record -> the old core leaves

An heir that fails is passed over for a while. With no heir the core stays, past its deadline too, and an alarm says so;
when all have failed, it is at boundaries alone that somebody is asked again, so that training goes on.
"""

from temporalio import workflow

from workflows import steps
from workflows.allocation import Allocation
from workflows.books import CellMove, HandOver
from workflows.cell_table import CellEntry
from workflows.messages.control import RecordCore
from workflows.messages.fleet import CellReport, CellRole
from workflows.messages.scheduling import Weights
from workflows.messages.transition import Direction, MoveCell
from workflows.parking import StepAborted, StepSkipped

RETRY_SECONDS = 15.0
"""After which heirs that failed are asked again."""
_GONE = (CellRole.LOST, CellRole.PARKED, CellRole.STARTING)
"""Nobody who reports one of these still answers what was asked of it before."""
_MOVING = (CellRole.TO_TRAINING, CellRole.TO_ROLLOUT)


class Succession(Allocation):
    """The Scheduler's part in it."""

    def _core_leaves(self) -> bool:
        return self.cells.entries[self.cells.core].leaves_at is not None

    def _succeed(self, core: CellEntry) -> float | None:
        """Hand the core over if it is time; returns seconds after which time alone changes the answer."""
        self._miss_heir()
        over, now = self.hand_over or HandOver(), workflow.time()
        if over.heir is not None:
            return None
        costs = [self.telemetry.migration_seconds(move) for move in (Direction.TAKE_OVER, Direction.RETIRE)]
        latest = (core.leaves_at or now) - sum(costs)
        if (now < latest or (over.told and over.tried)) and not self._at_boundary(core):
            return max(0.1, latest - now) if now < latest else None
        if over.failed and now >= over.again_at:
            over = over.model_copy(update={"failed": ()})
        heirs = [cell for cell in self.cells.heirs() if cell not in over.failed]
        if not heirs:
            coming = [cell for cell in self.cells.heirs(settled=False) if cell not in over.failed]
            if any(self.cells.role(cell) in _MOVING for cell in coming):
                return None  # its report will come
            self._keep(core, over)
            return max(0.1, over.again_at - now) if over.failed else RETRY_SECONDS
        self._ask(heirs[0], over)
        return None

    def _at_boundary(self, core: CellEntry) -> bool:
        """Whether nothing that the core has is not committed."""
        if core.role in _MOVING:
            return False
        return self.batch is None or self.batch.held or core.role is not CellRole.TRAINING

    def _keep(self, core: CellEntry, over: HandOver) -> None:
        """Nobody can take it now: it works on, as if it had not been reclaimed."""
        if not over.told:
            self._note("alarm", core.spec.index, ("the core stays", "no cell is ready to take it over"))
        self.hand_over, self.cells.core_stays = over.model_copy(update={"told": True}), True
        if self.batch is not None and self.batch.held:  # not at every look: what is told wakes the Scheduler again
            self._call_members()
            self.dirty = True

    def _ask(self, heir: int, over: HandOver) -> None:
        """Let `heir` take over; whatever it and the core have accumulated does not count any more."""
        core, committed, entry = self.cells.core, self.committed or self.weights, self.cells.entries[heir]
        told = f"from cell {core}, at version {committed.version}"
        self._note("fleet", heir, ("takes over", told), direction=Direction.TAKE_OVER)
        if self.batch is not None and not self.batch.held:
            for cell in (core, heir):
                if self.cells.role(cell) is CellRole.TRAINING:
                    self._tell_batch("member_left", self.cells.member(cell))
        move = MoveCell(
            move=self._next_move(),
            boot_epoch=entry.boot_epoch,
            direction=Direction.TAKE_OVER,
            weights=self.weights,
            committed=committed,
        )
        asked = CellMove(cell=heir, move=move.move, boot_epoch=entry.boot_epoch)
        self.hand_over = over.model_copy(update={"heir": asked, "begun_at": workflow.time()})
        self._spawn(self._send_move(heir, move), f"hand the core over to cell {heir}")

    def _took_over(self, report: CellReport) -> bool:
        """Whether this is the heir's answer; then the hand-over is over, one way or the other."""
        heir = self.hand_over.heir if self.hand_over is not None else None
        if heir is None or (report.cell, report.move, report.boot_epoch) != (heir.cell, heir.move, heir.boot_epoch):
            return False
        if report.reason:
            self._pass_over(report.reason)
        else:
            self._name(heir.cell)
        self.dirty = True
        return True

    def _miss_heir(self) -> None:
        """An heir that is gone, parked or has booted anew does not answer any more."""
        heir = self.hand_over.heir if self.hand_over is not None else None
        if heir is None:
            return
        entry = self.cells.entries.get(heir.cell)
        if entry is None or entry.role in _GONE or entry.boot_epoch != heir.boot_epoch:
            self._pass_over(f"it is {entry.role.value}" if entry is not None else "it is gone")

    def _pass_over(self, reason: str) -> None:
        """The heir did not take over: the core is what it was."""
        over = self.hand_over
        if over is None or over.heir is None:
            return
        failed, again_at = (*over.failed, over.heir.cell), workflow.time() + RETRY_SECONDS
        self._note("alarm", over.heir.cell, ("did not take over the core", reason))
        changed = {"heir": None, "failed": failed, "again_at": again_at, "tried": True}
        self.hand_over = over.model_copy(update=changed)
        self._call_members()

    def _name(self, heir: int) -> None:
        """The heir is the core, and everything that is asked of the core is asked of it from now on."""
        over, old = self.hand_over, self.cells.core
        self.cells.name_core(heir)
        self.hand_over = None
        if over is not None:
            took = workflow.time() - over.begun_at
            self.telemetry = self.telemetry.migrated(Direction.TAKE_OVER, took)
        self._note("fleet", heir, ("core", f"took over from cell {old}, hand-over {self.cells.change}"))
        self.naming = True
        self._spawn(self._record_core(heir, self.committed or self.weights), f"record cell {heir} as the core")
        self._call_members()

    async def _record_core(self, cell: int, weights: Weights) -> None:
        """Until it is on record a cell that boots may take the old core for the core; so that one waits for it.

        Refused for good, it parks for an operator, who may also go on without the record.
        """
        named = RecordCore(run=self.run_name, change=self.cells.change, cell=cell, weights=weights)
        what = f"record cell {cell} as the core"
        try:
            await self.parked_call(steps.RECORD_CORE, named, queue=self.control, summary=what)
        except (StepSkipped, StepAborted) as error:
            self._alarm(what, f"{error}; it is not on record: a cell that boots may take another one for the core")
        if named.change == self.cells.change:  # or the next hand-over has begun to be recorded meanwhile
            self.naming = False

    def _call_members(self) -> None:
        """Let the open batch go on, with everybody who trains, under the core there is now."""
        if self.batch is None:
            return
        self.batch = self.batch.model_copy(update={"held": False})
        for cell in self.cells.in_role(CellRole.TRAINING):
            self._call_member(cell)

    def _call_member(self, cell: int) -> None:
        """Tell the batch of a cell in training. While it is held or the core changes it is not: then all are, later."""
        changing = self.hand_over is not None and self.hand_over.heir is not None
        if self.batch is not None and not (self.batch.held or changing or self.cells.entries[cell].led):
            self._tell_batch("member_joined", self.cells.member(cell))
