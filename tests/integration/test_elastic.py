"""A stack that grows by a cell and gives one back in mid-burst; real processes, paced engines and trainers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import select

from infra.audit import audit_run
from infra.records.schema import executions, ledger, segments, transitions
from infra.settings.fleet import PacedTrainer
from infra.settings.run import load_run
from infra.temporal.client import ask
from tests.integration.conftest import WAIT_SECONDS, Run
from tests.integration.scene import burst, paced_fleet
from workers.cli import cells
from workers.cli.ledger import ledger as ledger_shown
from workers.cli.report import report as report_written
from workers.supervisor import LocalStack
from workflows.messages import ids
from workflows.messages.errors import InvalidInput
from workflows.messages.fleet import Elasticity
from workflows.messages.policies import PolicySettings, ThroughputSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.asyncio(loop_scope="module")]

BURSTS = 4
Look = Callable[[Run], Awaitable[bool]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    folder = tmp_path_factory.mktemp("elastic")
    paced = {"trainer": "paced", "paced_trainer": PacedTrainer(tokens_per_second=500)}
    fleet = paced_fleet(folder, run="elastic", cells=2).model_copy(update=paced)
    async with LocalStack(fleet, folder / "run") as stack:
        await stack.ready(timeout_seconds=300)
        yield Run(stack)


async def present(run: Run, *indices: int) -> None:
    """Wait until the stack runs workers for exactly these cells."""
    wanted = {ids.engine_id(index) for index in indices}
    async with asyncio.timeout(WAIT_SECONDS):
        while {name for name, pid in run.stack.processes().items() if name.startswith("cell-") and pid} != wanted:
            await asyncio.sleep(0.3)


async def test_a_cell_joins_and_another_leaves_in_mid_burst(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = run.client.get_workflow_handle(ids.scheduler_id("elastic"))
    await run.rested()
    handle = await run.start(burst("elastic", steps=3))
    manifest = load_run(Path(run.stack.run_dir))
    assert "cell 2 joins" in await cells.offer(manifest)
    await present(run, 0, 1, 2)
    await run.until(lambda state: any(cell.index == 2 and cell.serving for cell in state.cells), "cell 2 serves")
    with pytest.raises(InvalidInput, match="cell: the run has no cell 7"):
        await cells.reclaim(manifest, 7, 20)
    assert await cells.reclaim(manifest, 1, 300, wait=True) == "cell 1 has left the run"
    assert [cell.index for cell in (await run.policy()).cells] == [0, 2]
    await present(run, 0, 2)
    report = await handle.result()
    assert (report["version"], len(report["steps"])) == (3, 3)
    more = await other_policies(run)
    elastic = await ask(scheduler, "elasticity", Elasticity)
    assert [cell.index for cell in elastic.cells] == [0, 2]
    assert elastic.costs["retire"].count == 1
    with run.stack.records.connect() as connection:
        rows = connection.execute(select(executions.c.outcome, executions.c.closed_at)).all()
        assert len(rows) == 24 + 8 * more
        assert all(row.outcome == "scored" and row.closed_at is not None for row in rows)
        retired = connection.execute(select(transitions).where(transitions.c.direction == "retire")).all()
        assert [(row.cell, row.result) for row in retired] == [(1, "done")]
        assert connection.execute(select(segments.c.cell).where(segments.c.cell == 2)).first(), "cell 2 served nobody"
        together = connection.scalars(select(ledger.c.together).where(ledger.c.policy == "colocate")).all()
        assert [2] in together, "the pool did not move together"
    manifest = load_run(Path(run.stack.run_dir))
    assert (len(manifest.fleet.cells), manifest.gone) == (3, (1,))
    audit = audit_run(Path(run.stack.run_dir), at_rest=True)
    assert not audit.findings, audit.findings
    ledger_shown(run_dir=Path(run.stack.run_dir), last=0)
    report_written(str(run.stack.run_dir))
    told = " ".join(capsys.readouterr().out.split())
    assert all(word in told for word in ("offered", "reclaimed", "left", "throughput", "colocate"))
    assert (Path(run.stack.run_dir) / "report.html").exists()


async def looked_at(run: Run) -> bool:
    """Whether the Scheduler knows how busy its training cells are."""
    sample = (await run.scheduler())["telemetry"]["sample"]
    return sample is not None and "0" in sample["training"]


async def other_policies(run: Run) -> int:
    """The fleet that is left carries on, under whatever policy; how many bursts that took.

    A sample is kept only while its burst goes on, so that it is seen is a matter of luck: as many bursts as it takes.
    """
    sampled = PolicySettings(name="throughput", throughput=ThroughputSettings(sample_seconds=0.5))
    whole = PolicySettings(name="colocate", streaming=False)
    done, seen = 0, False
    while not seen:
        assert done < BURSTS, f"the pipeline was not looked at in {BURSTS} bursts"
        seen = await one_step(run, sampled, done, looked_at)
        done += 1
    await one_step(run, whole, done)
    return done + 1


async def one_step(run: Run, policy: PolicySettings, number: int, look: Look | None = None) -> bool:
    """A burst of one step from a fleet at rest to a fleet at rest; whether what `look` is for was seen in it."""
    await run.rested()
    handle = await run.start(burst("elastic", f"{policy.name}-{number}", steps=1, policy=policy))
    seen = look is not None and await run.caught(handle, lambda _: look(run))
    report = await handle.result()
    assert report["version"] == 4 + number
    await run.rested()
    return seen
