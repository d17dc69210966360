"""A reclaimed cell that is not gone at its deadline, as `gyre status` and `gyre cells show` say it."""

from pathlib import Path
from typing import Any

import pytest

from workers.cli import cells
from workers.cli.status import _late
from workflows.books import SchedulerState
from workflows.cell_table import CellEntry
from workflows.messages.fleet import CellSpec, Elasticity
from workflows.messages.scheduling import RunSpec, Weights

WHY = "it is retiring; cell 1: release_rollout, attempt 2"
SPECS = (CellSpec(index=0), CellSpec(index=1))


def test_status_has_a_line_for_each() -> None:
    weights = Weights(version=0, checksum="c")
    entries = (CellEntry(spec=SPECS[0]), CellEntry(spec=SPECS[1], leaves_at=1.0, late=WHY))
    state = SchedulerState(spec=RunSpec(run="r", cells=SPECS, weights=weights), weights=weights, cells=entries)
    assert _late(state) == f"\nLATE: cell 1: {WHY}"
    assert _late(state.model_copy(update={"cells": entries[:1]})) == ""


def test_cells_show_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def asked(manifest: Any) -> Elasticity:
        return Elasticity(cells=SPECS, leaving={1: 1.0}, late={1: WHY}, min_cells=1, max_cells=2, next_index=2)

    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(cells, "_running", lambda run_dir: None)
    monkeypatch.setattr(cells, "_elasticity", asked)
    cells.cells_show(run_dir=Path("r"))
    assert f"leaving, late: {WHY}" in capsys.readouterr().out
