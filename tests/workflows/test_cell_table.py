"""The Scheduler's view of the cells, against reports that come late, and what is waited for when a cell is gone."""

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow

from workflows.allocation import without
from workflows.books import CellMove, PendingMove
from workflows.cell_table import CellEntry, CellTable
from workflows.messages.fleet import CellReport, CellRole, CellSpec
from workflows.messages.transition import Direction
from workflows.parking import first_number

AWAY = (CellRole.TO_TRAINING, CellRole.RETIRING)


def table(role: CellRole, boot_epoch: int = 1) -> CellTable:
    return CellTable((CellEntry(spec=CellSpec(index=0), role=role, boot_epoch=boot_epoch),))


def serving(**changes) -> CellReport:
    return CellReport(**{"cell": 0, "boot_epoch": 1, "role": CellRole.ROLLOUT, "version": 3} | changes)


@pytest.mark.parametrize("move", ["", "r/7"])
@pytest.mark.parametrize("role", AWAY)
def test_an_older_report_does_not_bring_a_cell_back(role: CellRole, move: str):
    """Its boot (no move) or a publish (another move) was still under way when it was asked to go."""
    cells = table(role)
    assert cells.apply(serving(move=move), "r/8") is not None
    assert (cells.role(0), cells.serving(3)) == (role, ())


@pytest.mark.parametrize("role", AWAY)
def test_what_came_of_the_move_counts(role: CellRole):
    cells = table(role)
    cells.apply(serving(move="r/8"), "r/8")
    assert (cells.role(0), cells.serving(3)) == (CellRole.ROLLOUT, (0,))


@pytest.mark.parametrize("changes", [{"boot_epoch": 2}, {"role": CellRole.PARKED}, {"role": CellRole.STARTING}])
def test_a_new_boot_and_a_cell_that_cannot_go_are_believed(changes):
    cells = table(CellRole.TO_TRAINING)
    cells.apply(serving(**changes), "r/8")
    assert cells.role(0) is changes.get("role", CellRole.ROLLOUT)


def test_nothing_is_waited_for_of_a_cell_that_is_gone():
    def pending(*cells: int) -> PendingMove:
        asked = tuple(CellMove(cell=cell, move=f"r/{cell}", boot_epoch=1) for cell in cells)
        return PendingMove(token="t", direction=Direction.RETIRE, cells=asked, started_at=0.0)

    assert without([pending(1), pending(1, 2), pending(3)], 1) == [pending(2), pending(3)]


def test_what_begins_anew_counts_on_above_all_that_was(monkeypatch):
    """Numbers of a life, one for each millisecond at most, end below those of the next."""
    from datetime import UTC, datetime, timedelta

    begun = datetime(2026, 1, 1, tzinfo=UTC)
    info = SimpleNamespace(workflow_start_time=begun)
    monkeypatch.setattr(workflow, "info", lambda: info)
    first = first_number()
    info.workflow_start_time = begun + timedelta(seconds=2)
    assert first_number() == first + 2000


def test_a_reclaimed_cell_is_seen_as_one_that_leaves():
    """The policy counts it for nothing that is still to come."""
    cells = table(CellRole.TRAINING)
    assert not cells.views(3)[0].leaving
    cells.reclaim(0, 90.0)
    assert (cells.views(3)[0].leaving, cells.views(3)[0].trains) == (True, False)


def fleet(*specs: dict[str, Any], core: int = 0) -> CellTable:
    """Cells that serve, unless said otherwise; `role` and `leaves_at` of the entry, the rest of the spec."""
    entries = []
    for index, changes in enumerate(specs):
        own: dict[str, Any] = {"role": CellRole.ROLLOUT, "leaves_at": None} | changes
        spec = CellSpec(index=index, **{name: own[name] for name in own if name not in ("role", "leaves_at")})
        entries.append(CellEntry(spec=spec, role=own["role"], leaves_at=own["leaves_at"], version=3))
    return CellTable(tuple(entries), core)


TRAINS: dict[str, Any] = {"role": CellRole.TRAINING}
STARTS: dict[str, Any] = {"role": CellRole.STARTING}


@pytest.mark.parametrize(
    ("cells", "core", "heirs"),
    [
        (({},), 0, ()),
        (({}, {}, {}), 0, (1, 2)),
        (({}, {}, {}), 1, (0, 2)),
        (({}, {}, TRAINS), 0, (2, 1)),
        (({"stages": 2}, {}, TRAINS, {"stages": 2}), 0, (3, 2, 1)),
        (({"replicas": 2}, {"replicas": 2, "stages": 2}, {"replicas": 2}), 0, (2, 1)),
        (({}, {"trains": False}, {"leaves_at": 9.0}, {"role": CellRole.PARKED}, {"role": CellRole.LOST}), 0, ()),
        (({}, STARTS, {"role": CellRole.TO_TRAINING}, {"role": CellRole.RETIRING}), 0, ()),
        (({"leaves_at": 9.0, "role": CellRole.LOST}, {}), 0, (1,)),
    ],
)
def test_who_may_take_over_the_core(cells, core, heirs):
    """A trainer that stays: one of its layout first, then one that trains already, then by index."""
    assert fleet(*cells, core=core).heirs() == heirs


def test_who_may_take_over_later():
    cells = fleet({}, STARTS, {"role": CellRole.TO_ROLLOUT}, {"role": CellRole.PARKED}, {"trains": False} | STARTS)
    assert cells.heirs(settled=False) == (1, 2)


def test_whoever_is_named_comes_first():
    cells = fleet({"leaves_at": 9.0} | TRAINS, {}, {})
    cells.name_core(2)
    assert [view.index for view in cells.views(3)] == [2, 0, 1]
    assert (cells.core, cells.change, cells.entries[0].led, cells.entries[2].led) == (2, 1, True, False)
    assert (cells.member(1).core, cells.member(1).change) == (2, 1)


def test_a_core_that_nobody_follows_works_on():
    cells = fleet({"leaves_at": 9.0, "slots": 4}, {"slots": 4})
    assert (cells.capacity(3), cells.views(3)[0].trains, cells.views(3)[0].leaving) == (4, False, True)
    cells.core_stays = True
    assert (cells.capacity(3), cells.views(3)[0].trains, cells.views(3)[0].leaving) == (8, True, False)
    cells.name_core(1)
    assert cells.capacity(3) == 4
