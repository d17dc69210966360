"""A reclaimed cell that is not gone at its deadline: told once, with what it hangs at, and shown until it is gone.

A step that hangs while it beats is bounded by its own limit, which for a large checkpoint is hours, and nothing is cut
off for a deadline: what is half done is worth more than what would be begun again. But whoever waits for the machine
hears of it. What it hangs at is asked of Temporal: at the deadline, then with every sweep.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError

from workflows import steps
from workflows.cell_table import CellEntry
from workflows.messages.control import FindSteps, OpenStep
from workflows.messages.fleet import CellRole
from workflows.parking import call, failure_text
from workflows.succession import Succession

LATE_SECONDS = 5.0
"""After its deadline a cell is late: when it has to go is reckoned from what leaving took before, which is a guess."""
LOOK_SECONDS = 30.0
"""For so long it is tried to find out what a late cell hangs at."""
_MOVING = (CellRole.TO_TRAINING, CellRole.TO_ROLLOUT)
_LIMIT = 500


class Lateness(Succession):
    """The Scheduler's part in it."""

    def _watch_deadline(self, cell: int, entry: CellEntry) -> float | None:
        """Look at a reclaimed cell; returns seconds until it is late."""
        now = workflow.time()
        if entry.leaves_at is None:
            return None
        if now < entry.leaves_at + LATE_SECONDS:
            return max(0.1, entry.leaves_at + LATE_SECONDS - now)
        if cell not in self.looking and now >= self.looked.get(cell, 0.0) + self.spec.sweep_seconds:
            self.looking.add(cell)
            self._spawn(self._look_at(cell), f"see what cell {cell} hangs at")
        return None

    async def _look_at(self, cell: int) -> None:
        """What the cell hangs at now, into the books; the first time, into the ledger as well."""
        try:
            found = await self._found_at(cell)
        finally:
            self.looking.discard(cell)
            self.looked[cell] = workflow.time()
        entry = self.cells.entries.get(cell)
        if entry is None or entry.leaves_at is None:
            return  # gone meanwhile
        why = "; ".join(filter(None, (self._waits_for(cell, entry)[0], found)))[:_LIMIT]
        if not entry.late:
            self._note("alarm", cell, ("late", f"it was to be gone by {clock(entry.leaves_at)}: {why}"))
        self.cells.is_late(cell, why)
        self.dirty = True

    async def _found_at(self, cell: int) -> str:
        """The steps that are open at whoever the cell waits for, in words."""
        entry = self.cells.entries.get(cell)
        involved = self._waits_for(cell, entry)[1] if entry is not None else ()
        if not involved:
            return ""
        request, summary = FindSteps(run=self.run_name, cells=involved), f"what cell {cell} hangs at"
        try:
            found = await call(
                steps.FIND_STEPS, request, queue=self.control, summary=summary, give_up_seconds=LOOK_SECONDS
            )
        except ActivityError as error:
            if isinstance(error.cause, CancelledError):
                raise
            return f"what it hangs at was not found out: {failure_text(error)}"
        return in_words(found.steps) if found.steps else "no step of a role change is open"

    def _waits_for(self, cell: int, entry: CellEntry) -> tuple[str, tuple[int, ...]]:
        """What the reclaimed cell waits for, and the cells at whose role changes that is decided."""
        if cell == self.cells.core:
            return self._core_waits_for(entry)
        if entry.led and self.naming:
            return f"that cell {self.cells.core} is the core is not on record yet", ()
        asked = [one.started_at for one in self.pending if any(move.cell == cell for move in one.cells)]
        since = f", asked at {clock(asked[-1])}" if asked else ""
        reason = f" ({entry.reason})" if entry.reason else ""
        return f"it is {_plain(entry.role)}{since}{reason}", (cell,)

    def _core_waits_for(self, entry: CellEntry) -> tuple[str, tuple[int, ...]]:
        over = self.hand_over
        if over is not None and over.heir is not None:
            heir = over.heir.cell
            return f"it is the core, and cell {heir} was asked to take over at {clock(over.begun_at)}", (heir,)
        if self.cells.core_stays:
            return "it is the core, and no cell is ready to take it over", ()
        if entry.role in _MOVING:
            return f"it is the core, and {_plain(entry.role)}", (entry.spec.index,)
        coming = tuple(one for one in self.cells.heirs(settled=False) if self.cells.role(one) in _MOVING)
        return "it is the core, and is handed over when its own or another cell's role change is done", coming


def in_words(found: Sequence[OpenStep]) -> str:
    """`cell 1: take_core, attempt 1, runs since 2026-11-30 12:00:00 UTC`, and why it was begun again."""
    told: list[str] = []
    for step in found:
        text = f"cell {step.cell}: {step.step}, attempt {step.attempt}"
        text += f", {'runs' if step.runs else 'waits for its worker'} since {clock(step.since)}"
        told.append(f"{text}, after {step.failure}" if step.failure else text)
    return "; ".join(told)


def clock(moment: float) -> str:
    """Seconds since the epoch as a date and a time of day."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _plain(role: CellRole) -> str:
    return role.value.replace("_", " ")
