"""What the Scheduler writes to its ledger about a decision."""

from types import SimpleNamespace
from typing import Any

import pytest

from workflows.books import Books
from workflows.messages.policies import PolicySettings
from workflows.messages.transition import Direction
from workflows.policy.state import Decision, Reason, Verdict


@pytest.mark.parametrize(("cell", "direction"), [(2, Direction.TO_TRAINING), (None, None)])
def test_only_cells_are_sent_somewhere(cell: int | None, direction: Direction | None) -> None:
    """A plan that shares out processor slots moves no cell: its entry has no direction."""
    noted: dict[str, Any] = {}
    books: Any = SimpleNamespace(
        _policy=PolicySettings, _note=lambda kind, cell, reasons, state, **more: noted.update(more) or "run/1"
    )
    decision = Decision(verdict=Verdict.MOVE, cell=cell, reason=Reason.GAIN, detail="faster")
    state: Any = None
    assert Books._note_decision(books, "move", decision, state) == "run/1"
    assert noted["direction"] is direction
