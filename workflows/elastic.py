"""A fleet that grows and shrinks while bursts run: cells are offered to the run and reclaimed from it, from outside.

An offered cell joins when its worker has booted. A reclaimed one leaves as soon as nothing is lost by it, and at the
latest so that it is gone by its deadline: serving, it is drained like a cell that goes to training; training, it leaves
the stream, and what it has accumulated for an open batch is computed again by the others. The core goes only after
another cell has taken over its optimizer state (`workflows.succession`). Who is not gone at the deadline is told of
(`workflows.lateness`).
"""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import steps
from workflows.cell_table import CellEntry
from workflows.lateness import Lateness
from workflows.messages.fleet import COULD_NOT_LEAVE, CellRole, CellSpec, Elasticity, OfferCell, ReclaimCell
from workflows.messages.scheduling import OpenCell
from workflows.messages.transition import Direction

_ON_THEIR_WAY = (CellRole.RETIRING, CellRole.TO_TRAINING, CellRole.TO_ROLLOUT)


class Elastic(Lateness):
    """The outer scheduler's side of the Scheduler."""

    @workflow.update
    async def offer_cell(self, offer: OfferCell) -> str:
        """A cell joins the run; its worker may boot now."""
        cell = offer.cell
        if cell.index in self.cells.entries:
            return f"cell {cell.index} is in the run: {self.cells.role(cell.index).value}"
        self.reclaimed.discard(cell.index)
        self.cells.add(cell)
        self._note("fleet", cell.index, ("offered", f"{cell.slots} slots, {len(self.cells.entries)} cells"))
        self._spawn(self._open_cell(cell), f"start cell {cell.index}")
        return f"cell {cell.index} joins when its worker has booted"

    @offer_cell.validator
    def _may_offer(self, offer: OfferCell) -> None:
        index, entries = offer.cell.index, self.cells.entries
        if index in entries:
            if entries[index].leaves_at is not None:
                raise refusal(f"cell.index: {index} is being reclaimed; offer it when it is gone")
            if entries[index].spec != offer.cell:
                raise refusal(f"cell: differs from cell {index} of the run")
            return
        if index not in self.reclaimed and index != self._next_index():
            raise refusal(f"cell.index: the next one is {self._next_index()}")
        if index == 0 and not offer.cell.trains:  # a fleet is not loaded again without
            raise refusal("cell.trains: cell 0 is one that trains, also after it has handed the core over")
        if len(entries) >= self.spec.max_cells:
            raise refusal(f"cell: the run may have {self.spec.max_cells} cells at most")

    async def _open_cell(self, cell: CellSpec) -> None:
        opening = OpenCell(run=self.run_name, spec=cell, weights=self.weights, reboots=self.spec.reboots)
        await self._control(steps.OPEN_CELL, opening)

    @workflow.update
    async def reclaim_cell(self, request: ReclaimCell) -> str:
        """A cell has to leave the run; it drains like any other, and is gone by the deadline."""
        cell = request.cell
        if cell not in self.cells.entries:
            return f"cell {cell} has left the run"
        if self.cells.entries[cell].leaves_at is None:
            self._note("fleet", cell, ("reclaimed", f"to be gone in {request.deadline_seconds:g} s"))
        self.cells.reclaim(cell, workflow.time() + request.deadline_seconds)
        self.dirty = True
        return f"cell {cell} leaves within {request.deadline_seconds:g} s"

    @reclaim_cell.validator
    def _may_reclaim(self, request: ReclaimCell) -> None:
        cell, entries = request.cell, self.cells.entries
        if cell in self.reclaimed:
            return
        if cell not in entries:
            raise refusal(f"cell: the run has no cell {cell}, it has {', '.join(map(str, sorted(entries)))}")
        if entries[cell].leaves_at is not None or cell in self._reclaimable():
            return
        if cell == self.cells.core and not self.cells.heirs(settled=False):
            raise refusal(f"cell: {cell} is the core; nobody can take over its weights and optimizer state")
        if self._is_needed(cell):
            raise refusal(f"cell: {cell} is to take over from cell {self.cells.core}, the core, which leaves")
        raise refusal(f"cell: the fleet's bounds need {self._fewest()} cells to stay")

    @workflow.query
    def elasticity(self) -> Elasticity:
        """What this run can give and take, and what role changes have cost it."""
        entries = self.cells.entries
        return Elasticity(
            cells=tuple(entry.spec for _, entry in sorted(entries.items())),
            leaving={cell: entry.leaves_at for cell, entry in entries.items() if entry.leaves_at is not None},
            late=self.cells.late(),
            reclaimable=self._reclaimable(),
            min_cells=self._fewest(),
            max_cells=self.spec.max_cells,
            next_index=self._next_index(),
            core=self.cells.core,
            costs={direction.value: cost for direction, cost in sorted(self.telemetry.costs.items())},
        )

    def _reclaimable(self) -> tuple[int, ...]:
        staying = sorted(cell for cell, entry in self.cells.entries.items() if entry.leaves_at is None)
        if len(staying) <= self._fewest():
            return ()
        return tuple(cell for cell in staying if not self._is_needed(cell))

    def _is_needed(self, cell: int) -> bool:
        """Whether the run would be left without a core, or with one that cannot leave as it was promised to."""
        heirs = self.cells.heirs(settled=False)
        if cell == self.cells.core:
            return not heirs
        asked = self.hand_over.heir if self.hand_over is not None else None
        return self._core_leaves() and (heirs == (cell,) or (asked is not None and asked.cell == cell))

    def _fewest(self) -> int:
        bounds = self.spec.bounds
        return max(1, bounds.min_training_cells) + bounds.min_rollout_cells

    def _next_index(self) -> int:
        return max((*self.cells.entries, *self.reclaimed)) + 1

    def _let_go(self) -> float | None:
        """Send reclaimed cells away, now or later; returns seconds after which time alone makes the next one go."""
        now, waits = workflow.time(), list[float]()
        for cell, entry in sorted(self.cells.entries.items()):
            if entry.leaves_at is None:
                continue
            waits += [seconds for seconds in (self._watch_deadline(cell, entry),) if seconds is not None]
            if cell == self.cells.core:
                waits += [seconds for seconds in (self._succeed(entry),) if seconds is not None]
                continue
            if entry.role in _ON_THEIR_WAY or (entry.led and self.naming):
                continue
            latest = entry.leaves_at - self.telemetry.migration_seconds(Direction.RETIRE)
            cooldown = now < self.cooldown_until
            if failed := entry.reason.startswith(COULD_NOT_LEAVE):
                latest = entry.leaves_at  # then it leaves whether its steps work or not
            if now < latest and (failed or cooldown or not self._can_spare(entry)):
                until = min(latest, self.cooldown_until) if cooldown and not failed else latest
                waits.append(max(0.1, until - now))
                continue
            token = self._note("return", cell, ("reclaimed", f"was {entry.role.value}"), direction=Direction.RETIRE)
            self._go([cell], Direction.RETIRE, token)
        return min(waits, default=None)

    def _can_spare(self, entry: CellEntry) -> bool:
        """Whether the cell may go without work being done twice or executions waiting for an engine."""
        if entry.role is CellRole.TRAINING:
            return self.batch is None or self.batch.held or entry.led
        if entry.role is CellRole.ROLLOUT:
            return self.accounts.running <= self.cells.capacity(self.weights.version)
        return True


def refusal(reason: str) -> ApplicationError:
    """An update that is not taken, and why."""
    return ApplicationError(reason, type="Refused", non_retryable=True)
