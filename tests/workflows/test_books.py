"""What the Scheduler writes to its ledger about a decision, and whose fate a sweep brings."""

from types import SimpleNamespace
from typing import Any

import pytest

from workflows.books import Books
from workflows.errands import Errands
from workflows.messages import ids
from workflows.messages.control import ExecutionFate
from workflows.messages.execution import EndReason, Outcome
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


@pytest.mark.parametrize(("now_open", "cancelled"), [("first run", ["score"]), ("second run", [])])
async def test_a_burst_does_not_share_the_fate_of_an_earlier_one_of_its_name(
    now_open: str, cancelled: list[str]
) -> None:
    """An evaluation may have the name of one before: a sweep that had asked for that one may end when it is open."""
    over: list[str] = []
    scheduler: Any = SimpleNamespace(
        run_name="r",
        batch=None,
        accounts=SimpleNamespace(roster={}),
        _open_bursts=lambda: {"score": now_open},
        _alarm=lambda *reasons: None,
        _cancel=over.append,
    )
    fate = ExecutionFate(
        execution=ids.burst_id("r", "score"), status="completed", end=EndReason.TERMINATED, outcome=Outcome.NO_ARTIFACT
    )
    await Errands._bury(scheduler, fate, {"score": "first run"})
    assert over == cancelled
