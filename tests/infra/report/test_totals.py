"""What cells spent their time on, and whether moving has paid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.report.account import account
from infra.report.changes import Boot, Change, Entry
from infra.report.cuts import Cut
from infra.report.reading import Claim, ExecutionFact, Records, Segments, Update

SLOTS = {0: 4, 1: 4}
UP = [Change(f"boot-{cell}", cell, "boot", 0.0, 1.0, "done") for cell in SLOTS]
THERE = Change("there", 1, "to_training", 20.0, 22.0, "done", figures={"executions_rerouted": 3, "weights_bytes": 0})
BACK = Change("back", 1, "to_rollout", 40.0, 43.0, "done", figures={"weights_bytes": 700})


def execution(begin: float, end: float) -> ExecutionFact:
    return ExecutionFact(f"e{begin}-{end}", "b", 0, "train", begin, end, end - begin, 100.0, "submitted", 1.0)


def records(*, entries=(), changes=(), executions=(), claims=(), updates=(), segments=(), cuts=(), end=60.0) -> Records:
    spans = np.array([(begin, stop) for _, begin, stop in segments], dtype=np.float64).reshape(-1, 2)
    cells = np.array([cell for cell, _, _ in segments], dtype=np.int64)
    return Records(
        run="r",
        slots=SLOTS,
        entries=tuple(entries),
        changes=(*UP, *changes),
        boots=(Boot(0, 0.0), Boot(1, 0.0)),
        executions=tuple(executions),
        claims=tuple(claims),
        updates=tuple(updates),
        segments=Segments(cells, spans, np.ones(len(spans))),
        cuts=tuple(cuts),
        resumed=(),
        end=end,
    )


def seen(at: float, waterlevel: int, kind: str = "refuse", cell: int | None = None) -> Entry:
    return Entry(
        f"t{at}", at, kind, cell, ("capacity", "d"), "waterlevel", dispatched=waterlevel, launched=0, finished=0
    )


def trained(begin: float, end: float, *, counted: bool = True) -> Claim:
    return Claim("batch", 1, begin, end, 10, counted)


def test_training_is_gained_while_the_slots_left_cover_the_work():
    found = account(
        records(
            entries=[seen(2, 4), seen(19.9, 4, "move", 1), seen(30, 9), seen(39.9, 9, "return", 1)],
            changes=[THERE, BACK],
            executions=[execution(2, 50)],
            claims=[trained(24, 28), trained(28.5, 29.5, counted=False), trained(31, 36)],
            updates=[Update("batch", 23.0, 38.0, 1, (1.0,), (0,), (1,))],
            segments=[(0, 2, 50), (1, 2, 20)],
            cuts=[Cut("c", 1, 20.5, 0, 20.0, 21.5, 100, 60)],
        )
    ).totals
    assert (found.trained_free, found.trained_full) == pytest.approx(
        (4.0, 5.0)
    )  # from 30 s on, 9 executions on 4 slots
    assert found.trained_in_vain == pytest.approx(1.0)
    assert found.changing == pytest.approx({"to_training": 2.0, "to_rollout": 3.0, "retire": 0.0})
    assert found.net == pytest.approx(-1.0)
    assert (found.requests_moved, found.executions_rerouted, found.weights_bytes) == (1, 3, 700)
    assert (found.pause_seconds, found.kv_tokens_reused, found.kv_tokens_recomputed) == pytest.approx((1.5, 60, 40))
    assert found.verdict.startswith("Elasticity did not pay: 4.0 cell-seconds")
    assert found.results == {"to_training done": 1, "to_rollout done": 1}
    assert found.refusals == {"capacity": 2}


def test_the_seconds_of_a_cell_by_what_it_did():
    found = account(
        records(
            entries=[seen(2, 4)],
            changes=[THERE, BACK],
            executions=[execution(2, 50)],
            claims=[trained(24, 28), trained(30, 36)],
            updates=[Update("batch", 23.0, 38.0, 1, (), (), (1,))],
            segments=[(1, 3, 10), (1, 8, 12), (1, 45, 48)],
        )
    )
    cell = next(cell for cell in found.cells if cell.cell == 1)
    assert (cell.starting, cell.serving, cell.idle, cell.unused) == pytest.approx((1, 12, 1 + 8 + 2 + 2, 1 + 10))
    assert (cell.training, cell.updating, cell.waiting) == pytest.approx((10, 2, 18 - 12))
    assert (cell.changing, cell.slot_seconds) == pytest.approx((5, 7 + 4 + 3))


def test_without_a_move_there_is_nothing_to_pay():
    found = account(records(entries=[seen(2, 4)])).totals
    assert found.verdict.startswith("No cell has changed its role")
    assert (found.spent, found.net) == (0, 0)


moments = st.floats(0, 60)
spans = st.tuples(moments, moments).map(sorted)


@given(
    st.lists(spans, max_size=6), st.lists(spans, max_size=6), st.lists(spans, max_size=4), st.lists(moments, max_size=4)
)
def test_every_second_is_counted_once(served, claimed, out, asked):
    found = account(
        records(
            entries=[seen(at, int(at) % 9) for at in asked],
            changes=[THERE, BACK],
            executions=[execution(*span) for span in out],
            claims=[trained(*span, counted=span[0] < 40) for span in claimed],
            updates=[Update("batch", 0.0, 60.0, 1, (), (), (1,))],
            segments=[(1, *span) for span in served],
        )
    )
    for cell in found.cells:
        parts = (cell.serving, cell.idle, cell.unused, cell.training, cell.updating, cell.waiting)
        assert min(parts) >= 0
        rest = cell.changing + cell.publishing + cell.starting + cell.parked + cell.retired
        assert sum(parts) + rest == pytest.approx(60.0)
    totals = found.totals
    trained_all = sum(cell.training for cell in found.cells)
    assert min(totals.trained_free, totals.trained_full, totals.trained_in_vain) >= 0
    assert totals.trained_free + totals.trained_full + totals.trained_in_vain == pytest.approx(trained_all)
