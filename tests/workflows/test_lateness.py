"""A reclaimed cell that is not gone at its deadline: when it is looked at, and in which words."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow

from workflows.books import CellMove, HandOver, PendingMove
from workflows.cell_table import CellEntry, CellTable
from workflows.lateness import LATE_SECONDS, Lateness, clock, in_words
from workflows.messages.control import OpenStep
from workflows.messages.fleet import COULD_NOT_LEAVE, CellRole, CellSpec
from workflows.messages.transition import Direction

NOON = 1_796_040_000.0


def entry(cell: int, role: CellRole = CellRole.ROLLOUT, **changes: Any) -> CellEntry:
    return CellEntry(spec=CellSpec(index=cell), role=role, **changes)


def scheduler(*cells: CellEntry, core: int = 0, **changes: Any) -> Any:
    books: Any = SimpleNamespace(
        cells=CellTable(cells, core),
        hand_over=None,
        naming=False,
        pending=[],
        looking=set[int](),
        looked=dict[int, float](),
        spec=SimpleNamespace(sweep_seconds=20.0),
        _look_at=lambda cell: cell,
    )
    for name, value in changes.items():
        setattr(books, name, value)
    books._core_waits_for = lambda entry: Lateness._core_waits_for(books, entry)
    return books


@pytest.mark.parametrize(
    ("now", "leaves_at", "looked", "answer", "looks"),
    [
        (NOON, None, None, None, False),
        (NOON, NOON + 60, None, 60 + LATE_SECONDS, False),
        (NOON, NOON, None, LATE_SECONDS, False),
        (NOON + LATE_SECONDS, NOON, None, None, True),
        (NOON + 30, NOON, NOON + 11, None, False),
        (NOON + 31, NOON, NOON + 11, None, True),
    ],
)
def test_it_is_looked_at_from_its_deadline_on(
    monkeypatch: pytest.MonkeyPatch, now: float, leaves_at: float, looked: float, answer: float | None, looks: bool
) -> None:
    """Not before, then with every sweep, and once at a time: nothing is waited for in between."""
    jobs: list[int] = []
    books = scheduler(entry(0), looked={} if looked is None else {1: looked})
    books._spawn = lambda job, what: jobs.append(job)
    monkeypatch.setattr(workflow, "time", lambda: now)
    late = entry(1, leaves_at=leaves_at)
    assert Lateness._watch_deadline(books, 1, late) == (pytest.approx(answer) if answer is not None else None)
    assert jobs == ([1] if looks else [])
    Lateness._watch_deadline(books, 1, late)
    assert jobs == ([1] if looks else [])


def waits_for(books: Any, cell: int) -> tuple[str, tuple[int, ...]]:
    return Lateness._waits_for(books, cell, books.cells.entries[cell])


def test_a_core_waits_for_its_heir() -> None:
    asked = HandOver(heir=CellMove(cell=2, move="r/1", boot_epoch=1), begun_at=NOON)
    cells = (entry(0, CellRole.TRAINING, leaves_at=NOON), entry(1, CellRole.TO_TRAINING), entry(2))
    told = f"it is the core, and cell 2 was asked to take over at {clock(NOON)}"
    assert waits_for(scheduler(*cells, hand_over=asked), 0) == (told, (2,))
    waits = "it is the core, and is handed over when its own or another cell's role change is done"
    assert waits_for(scheduler(*cells), 0) == (waits, (1,))
    nobody = scheduler(*cells)
    nobody.cells.core_stays = True
    assert waits_for(nobody, 0) == ("it is the core, and no cell is ready to take it over", ())
    moving = scheduler(entry(0, CellRole.TO_ROLLOUT, leaves_at=NOON), entry(1))
    assert waits_for(moving, 0) == ("it is the core, and to rollout", (0,))


def test_another_cell_waits_for_its_own_role_change() -> None:
    moves = (CellMove(cell=1, move="r/1", boot_epoch=1),)
    pending = PendingMove(token="t", direction=Direction.RETIRE, cells=moves, started_at=NOON)
    books = scheduler(entry(0), entry(1, CellRole.RETIRING, leaves_at=NOON), pending=[pending])
    assert waits_for(books, 1) == (f"it is retiring, asked at {clock(NOON)}", (1,))
    reason = f"{COULD_NOT_LEAVE}: await-quiet"
    books = scheduler(entry(0), entry(1, leaves_at=NOON, reason=reason))
    assert waits_for(books, 1) == (f"it is rollout ({reason})", (1,))
    books = scheduler(entry(0, led=True, leaves_at=NOON), entry(1), core=1, naming=True)
    assert waits_for(books, 0) == ("that cell 1 is the core is not on record yet", ())


def test_steps_are_told_in_words() -> None:
    assert clock(NOON) == "2026-11-30 12:00:00 UTC"
    runs = OpenStep(cell=1, step="take_core", attempt=2, since=NOON, runs=True, failure="Fenced: no")
    waits = OpenStep(cell=1, step="await_quiet", attempt=1, since=NOON, runs=False)
    assert in_words([runs, waits]) == (
        f"cell 1: take_core, attempt 2, runs since {clock(NOON)}, after Fenced: no; "
        f"cell 1: await_quiet, attempt 1, waits for its worker since {clock(NOON)}"
    )
