"""The manifest follows the fleet: where offered cells are found, which are gone, and how a run goes on with them."""

import asyncio
import sys
from types import SimpleNamespace

import pytest
from sqlalchemy import insert

from infra.records.database import open_database
from infra.records.schema import executions
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, load_run
from tests.infra.report.closed import execution_row
from workers.supervisor import stack as stack_module
from workers.supervisor.components import CELL_STAGE, ComponentSpec, fleet_components
from workers.supervisor.growth import cells_now, offered_anew, with_cell, without_cell
from workers.supervisor.journal import Journal
from workers.supervisor.run_folder import open_manifest
from workers.supervisor.stack import LocalStack
from workflows.messages.errors import InvalidInput
from workflows.messages.fleet import CellSpec, Elasticity
from workflows.messages.ids import engine_id


@pytest.fixture
def fleet(tmp_path) -> Fleet:
    return Fleet(run="demo", weights_folder=str(tmp_path / "memory"))


@pytest.fixture
def manifest(tmp_path, fleet) -> RunManifest:
    return open_manifest(fleet, tmp_path / "run")


def workers(manifest: RunManifest) -> list[str]:
    return [spec.name for spec in fleet_components(manifest) if spec.name.startswith("cell-")]


def test_an_offered_cell_gets_ports_of_its_own_and_a_worker(manifest):
    grown = with_cell(manifest, CellSpec(index=3, slots=2))
    ports = [*grown.engine_ports, *grown.actor_ports, *grown.linker_ports]
    assert len(set(ports)) == 12
    assert grown.engine_ports[:3] == manifest.engine_ports
    assert grown.actor_url(3) != grown.engine_url(3)
    assert grown.fleet.cells[3].slots == 2
    assert workers(grown) == ["cell-0", "cell-1", "cell-2", "cell-3"]


def test_a_cell_that_came_and_went_unseen_keeps_its_place(manifest):
    """Offered and reclaimed between two looks; the next one offered is number 5, and 3 may be offered again."""
    with_cell(manifest, CellSpec(index=5, slots=2)).save()
    grown = load_run(manifest.folder)
    assert [cell.index for cell in grown.fleet.cells] == [0, 1, 2, 3, 4, 5]
    assert (grown.gone, workers(grown)) == ((3, 4), ["cell-0", "cell-1", "cell-2", "cell-5"])
    ports = [*grown.engine_ports, *grown.actor_ports, *grown.linker_ports]
    assert len(set(ports)) == len(ports) == 18
    back = with_cell(grown, CellSpec(index=3, slots=7))
    assert (back.gone, back.fleet.cells[3].slots, back.engine_ports) == ((4,), 7, grown.engine_ports)


def test_a_fleet_that_could_not_be_loaded_again_is_not_written(manifest):
    with pytest.raises(ValueError, match="the core must train"):
        with_cell(manifest, CellSpec(index=0, trains=False))


def test_a_cell_that_left_has_no_worker_until_its_place_is_offered_again(manifest):
    smaller = without_cell(without_cell(manifest, 1), 1)
    assert (smaller.gone, workers(smaller)) == ((1,), ["cell-0", "cell-2"])
    back = with_cell(smaller, CellSpec(index=1, slots=5))
    assert (back.gone, back.fleet.cells[1].slots, back.engine_ports) == ((), 5, manifest.engine_ports)


def test_a_cell_that_came_back_as_another_one_is_seen(manifest):
    same, other = CellSpec(index=2), CellSpec(index=2, slots=5)
    assert [offered_anew(manifest, cell) for cell in (same, other)] == [False, True]
    assert not offered_anew(with_cell(manifest, other), other)


async def test_the_later_offer_wins_although_the_worker_of_the_earlier_one_still_runs(
    tmp_path, fleet, manifest, monkeypatch
):
    """Reclaimed and offered again between two looks: `run.json` has the new cell, and a worker that has read it."""
    sleeping = (sys.executable, "-S", "-c", "import time; time.sleep(3600)")
    monkeypatch.setattr(
        stack_module, "cell_worker", lambda manifest, index: ComponentSpec(engine_id(index), sleeping, stage=CELL_STAGE)
    )
    stack = LocalStack(fleet, tmp_path / "run")
    stack.manifest, stack._journal, stack._tie = manifest, Journal(tmp_path / "journal"), lambda: None
    cells, other = manifest.fleet.cells, CellSpec(index=2, slots=5)
    try:
        await stack._follow_to(cells)
        before = stack.processes()
        await stack._follow_to(cells)
        assert stack.processes() == before, "nothing has changed"
        await stack._follow_to((*cells[:2], other))
        after = stack.processes()
        assert after["cell-2"] not in (None, before["cell-2"])
        assert {name: after[name] for name in ("cell-0", "cell-1")} == {
            name: before[name] for name in ("cell-0", "cell-1")
        }
        assert (load_run(manifest.folder).fleet.cells[2], load_run(manifest.folder).gone) == (other, ())
        await stack._follow_to(cells[:2])
        assert (set(stack.processes()), load_run(manifest.folder).gone) == ({"cell-0", "cell-1"}, (2,))
    finally:
        await stack.stop()


async def test_a_look_that_is_cancelled_as_its_answer_comes_is_over():
    """Or the stack that stops would wait for the one that follows its fleet for ever."""
    answer: asyncio.Future[Elasticity] = asyncio.get_running_loop().create_future()

    async def query(*_, **__) -> Elasticity:
        return await asyncio.shield(answer)

    client = SimpleNamespace(get_workflow_handle=lambda _: SimpleNamespace(query=query))

    async def follow() -> None:
        while True:
            await cells_now(client, "run")  # pyright: ignore[reportArgumentType]
            await asyncio.sleep(3600)

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.01)
    answer.set_result(Elasticity(cells=(), min_cells=1, max_cells=1, next_index=0))
    for _ in range(2):
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait({following}, timeout=60)
    assert following.cancelled()


async def test_a_stack_that_stops_ends_what_has_missed_its_cancellation(tmp_path, fleet, monkeypatch):
    monkeypatch.setattr(stack_module, "_CANCEL_PAUSE_SECONDS", 0.01)
    missed = []

    async def deaf() -> None:
        while len(missed) < 3:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                missed.append("once")

    stack = LocalStack(fleet, tmp_path / "run")
    stack._tasks = [asyncio.create_task(deaf())]
    await asyncio.sleep(0)
    await stack.stop()
    assert (len(missed), stack._tasks) == (3, [])


def test_a_run_goes_on_with_the_cells_it_has_grown_to(tmp_path, fleet, manifest):
    without_cell(with_cell(manifest, CellSpec(index=3)), 1).save()
    for given in (None, fleet):  # the fleet file is still that of the beginning
        after = open_manifest(given, tmp_path / "run")
        assert (len(after.fleet.cells), after.gone) == (4, (1,))
    engine = open_database(manifest.database_url, create=True)
    with engine.begin() as connection:
        connection.execute(insert(executions), [execution_row(0)])
    engine.dispose()
    with pytest.raises(InvalidInput, match="cells"):
        open_manifest(
            fleet.model_copy(update={"cells": (*fleet.cells[:2], CellSpec(index=2, slots=9))}), tmp_path / "run"
        )
