"""What the control worker starts when a run begins, and begins anew."""

from typing import Any

from infra.settings.fleet import Fleet
from workers.control.worker import start_run
from workers.supervisor.run_folder import open_manifest
from workflows.accounts import AccountsState
from workflows.books import SchedulerState
from workflows.messages import ids
from workflows.messages.fleet import CellSpec
from workflows.messages.scheduling import Weights


class Started:
    """Stands in for Temporal: keeps what it was asked to start."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}

    async def start_workflow(self, _: Any, state: Any, *, id: str, **more: Any) -> None:
        self.states[id] = state


async def test_cells_that_were_reclaimed_stay_gone(tmp_path):
    """A Scheduler begun anew neither waits for them nor refuses to have them offered again."""
    cells = tuple(CellSpec(index=index, engine="paced") for index in range(3))
    manifest = open_manifest(Fleet(run="r", cells=cells), tmp_path / "run").model_copy(update={"gone": (1,)})
    started = Started()
    await start_run(manifest, started, Weights(version=0, checksum="c"), AccountsState(), {})  # type: ignore[arg-type]
    books = started.states[ids.scheduler_id("r")]
    assert isinstance(books, SchedulerState)
    assert [entry.spec.index for entry in books.cells] == [0, 2]
    assert [cell.index for cell in books.spec.cells] == [0, 2]
    assert books.reclaimed == (1,)
    assert sorted(started.states) == sorted([ids.scheduler_id("r"), *(ids.cell_workflow_id("r", i) for i in (0, 2))])
