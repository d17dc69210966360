"""What is seen of a run, on the terminal and in the picture: the core is the cell on record, whatever its index."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import insert

from infra.records import schema
from infra.records.database import open_database
from infra.report.changes import Entry
from infra.report.leaders import Leaders
from workers.demo import picture
from workers.demo.watch import Look, Watch

LOOK = Look(
    at=100.0,
    waterlevel=3,
    capacity=8,
    queued=1,
    running=2,
    ready=0,
    roles={0: "training", 1: "rollout", 2: "training"},
    version=1,
    mean_reward=None,
    core=0,
)
HANDED_OVER = dataclasses.replace(LOOK, at=101.0, core=2, roles={1: "rollout", 2: "training"})


class _Handle:
    """A Scheduler whose core is cell 2: it comes first, as the policies see it."""

    async def query(self, name: str, **_: Any) -> dict[str, Any]:
        if name == "elasticity":
            return {"late": {"0": "it is retiring; cell 0: await_quiet, attempt 1"}}
        assert name == "policy_state"
        cells = [{"index": index, "role": "rollout", "slots": 4, "serving": True} for index in (2, 0, 1)]
        cells[0]["role"] = "training"
        counters = {"dispatched": 3, "launched": 2, "finished": 0, "ready_unassigned": 0}
        return {**counters, "cells": cells}


@pytest.fixture
def watch(tmp_path: Path):
    records = open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)
    client: Any = type("Client", (), {"get_workflow_handle": lambda self, name: _Handle()})()
    yield Watch(client, records, "r", Console(file=io.StringIO(), width=200))
    records.dispose()


async def test_the_core_is_the_one_on_record(watch: Watch) -> None:
    look = await watch._look()
    assert look is not None
    assert (look.core, look.roles) == (0, {0: "rollout", 1: "rollout", 2: "training"})
    row = {"change": 1, "cell": 2, "version": 0, "checksum": "c", "named_at": 1.0}
    with watch.records.begin() as connection:
        connection.execute(insert(schema.cores), [row])
    look = await watch._look()
    assert look is not None
    assert look.core == 2
    watch.console.print(watch._picture(look))
    shown = watch.console.file.getvalue()  # type: ignore[attr-defined]
    assert "core (cell 2): training" in shown
    assert "satellite 0: rollout" in shown
    late = "cell 0: it is retiring; cell 0: await_quiet, attempt 1"
    assert f"late: {late}" in shown
    assert watch._line(look).endswith(f"cells 0:rollout 1:rollout 2:training*  LATE {late}")
    on_time = dataclasses.replace(look, late={})
    assert watch._line(on_time).endswith("cells 0:rollout 1:rollout 2:training*")


def test_the_picture_names_who_led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that left or came have the times at which they were there."""
    from matplotlib.axes import Axes

    named: list[list[str]] = []
    plain = Axes.set_yticks

    def set_yticks(self: Axes, ticks: Any, labels: Any = None, **more: Any) -> Any:
        if labels is not None:
            named.append(list(labels))
        return plain(self, ticks, labels, **more)

    monkeypatch.setattr(Axes, "set_yticks", set_yticks)
    took = Entry(token="t", at=101.0, kind="fleet", cell=2, reasons=("core", "took over from cell 0"))
    file = tmp_path / "demo.png"
    picture.draw([LOOK, HANDED_OVER], [], Leaders([took]), file)
    assert file.stat().st_size > 0
    assert named == [["cell 0, core", "cell 1", "cell 2, core"]]
    assert picture.spans([LOOK, HANDED_OVER], 0) == [(100.0, 101.0, "training")]
    assert picture.spans([LOOK, HANDED_OVER], 2) == [(100.0, 101.0, "training")]
