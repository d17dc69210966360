"""Which cell was the core, from the ledger."""

from infra.report.changes import Entry
from infra.report.leaders import Leaders


def told(at: float, reason: str, cell: int) -> Entry:
    return Entry(at=at, kind="fleet", cell=cell, reasons=(reason, "in words"), token=f"t{at}")


def test_cell_0_leads_until_another_one_takes_over() -> None:
    leaders = Leaders([told(5.0, "core", 2), told(3.0, "takes over", 2), told(9.0, "core", 1), told(7.0, "left", 0)])
    assert [leaders.at(moment) for moment in (4.9, 5.0, 8.9, 9.0)] == [0, 2, 2, 1]
    assert [leaders.label(cell) for cell in (0, 1, 2, 3)] == ["cell 0, core", "cell 1, core", "cell 2, core", "cell 3"]


def test_without_a_hand_over_there_is_one_core() -> None:
    leaders = Leaders([told(5.0, "left", 1)])
    assert (leaders.at(6.0), leaders.label(0), leaders.label(1)) == (0, "core", "cell 1")
