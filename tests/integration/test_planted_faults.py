"""Every fault of the audit's catalogue, planted in the records of a real run, is found.

Real Temporal, workflows, proxy, harness, scoring and training; the engines are the paced double.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from infra.audit import audit_records
from infra.audit.catalogue import CATALOGUE
from infra.objects import ObjectStore
from infra.report.account import account
from infra.report.changes import ROLE_CHANGES
from infra.report.page import page
from infra.report.reading import read
from infra.settings.fleet import Fleet
from tests.infra.audit.any_run import PLANTS
from tests.infra.audit.recording import SyntheticRun
from tests.integration.conftest import Run
from tests.integration.scene import burst, paced_fleet
from workers.supervisor import LocalStack
from workflows.messages.burst import PolicySettings
from workflows.messages.fleet import CellSpec

EAGER = PolicySettings(hold_seconds=0.0, supply_fraction=0.3)
BURSTS = ("first", "second", "third", "fourth", "fifth", "sixth")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def recorded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What bursts with a satellite, moved requests and two updates each have left: two, or as many as it takes."""
    folder = tmp_path_factory.mktemp("recorded")
    asyncio.run(record(folder))
    return folder / "run"


async def record(folder: Path) -> None:
    fleet = paced_fleet(folder, run="recorded", turns=6, tokens_per_second=25)
    async with LocalStack(fleet, folder / "run") as stack:
        await stack.ready(timeout_seconds=300)
        run = Run(stack)
        for number, name in enumerate(BURSTS):
            spec = burst("recorded", name, groups_per_step=3, executions_per_group=4, policy=EAGER)
            await (await run.start(spec)).result()
            await run.rested()
            # Whether a satellite joins is a matter of timing; the faults are planted where one did.
            if number and satellite_joins(stack) > 0:
                break


def satellite_joins(stack: LocalStack) -> int:
    store = ObjectStore(stack.manifest.object_store_url)
    return int(audit_records(stack.records, store, at_rest=True).figures["satellite_joins"])


@pytest.fixture
def recorded(recorded_folder: Path, tmp_path: Path):
    """A copy of the run's records and objects, to damage."""
    for file in recorded_folder.glob("records.db*"):
        shutil.copy(file, tmp_path / file.name)
    shutil.copytree(recorded_folder / "objects", tmp_path / "objects")
    run = SyntheticRun.open(tmp_path)
    yield run
    run.engine.dispose()


def test_the_run_itself_is_sound(recorded: SyntheticRun) -> None:
    report = audit_records(recorded.engine, recorded.store, at_rest=True)
    assert report.found == {}
    assert report.figures["satellite_joins"] > 0
    assert report.figures["updates"] >= 4
    assert report.figures["target_tokens"] > 0


def test_the_ledger_accounts_for_every_role_change(recorded: SyntheticRun) -> None:
    fleet = Fleet(run="recorded", cells=tuple(CellSpec(index=index, engine="paced", slots=4) for index in range(3)))
    found = account(read(recorded.engine, fleet))
    owned = {change.transition for move in found.moves.values() for change in move.changes}
    changes = [change for change in found.records.changes if change.direction in ROLE_CHANGES]
    assert changes
    assert {change.transition for change in changes} == owned
    assert all(move.entry.policy == "waterlevel" for move in found.moves.values() if move.entry.kind == "move")
    assert found.totals.trained_free + found.totals.trained_full > 0
    assert found.totals.weights_bytes > 0
    assert page(found).count("<svg") == 6


@pytest.mark.parametrize(("code", "plant"), PLANTS, ids=[f"{code}-{plant.__name__}" for code, plant in PLANTS])
def test_a_planted_fault_is_found(recorded: SyntheticRun, code: str, plant) -> None:
    plant(recorded)
    report = audit_records(recorded.engine, recorded.store, at_rest=True)
    assert code in report.codes()
    assert all(finding.invariant == CATALOGUE[finding.code].invariant for finding in report.findings)
