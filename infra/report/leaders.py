"""Which cell was the core, and when: cell 0 to begin with, then whoever the ledger says took over."""

from bisect import bisect_right
from collections.abc import Iterable

from infra.report.changes import Entry


class Leaders:
    """From the entries of a ledger, in any order."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        named = [(entry.at, entry.cell) for entry in entries if entry.kind == "fleet" and entry.reason == "core"]
        found = sorted((at, cell) for at, cell in named if cell is not None)
        self._at = [at for at, _ in found]
        self.cells = (0, *(cell for _, cell in found))

    def at(self, moment: float) -> int:
        """The core at `moment`, seconds since the epoch."""
        return self.cells[bisect_right(self._at, moment)]

    def label(self, cell: int) -> str:
        """What a plot calls the cell."""
        if cell not in self.cells:
            return f"cell {cell}"
        return "core" if len(set(self.cells)) == 1 else f"cell {cell}, core"
