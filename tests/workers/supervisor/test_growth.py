"""The manifest follows the fleet: where offered cells are found, which are gone, and how a run goes on with them."""

import pytest
from sqlalchemy import insert

from infra.records.database import open_database
from infra.records.schema import executions
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, load_run
from tests.infra.report.closed import execution_row
from workers.supervisor.components import fleet_components
from workers.supervisor.growth import with_cell, without_cell
from workers.supervisor.run_folder import open_manifest
from workflows.messages.errors import InvalidInput
from workflows.messages.fleet import CellSpec


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
