"""The core leaves a running stack in mid-burst: another cell leads, after a restart too. Real processes, paced work."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from infra.actor import ActorClient
from infra.audit import audit_run
from infra.records.cores import core_on_record
from infra.records.schema import cores, executions, transitions, updates
from infra.settings.fleet import PacedTrainer
from infra.settings.run import Secrets, load_run
from infra.temporal.client import ask
from tests.integration.conftest import Run
from tests.integration.scene import burst, paced_fleet
from workers.cli import cells
from workers.supervisor import LocalStack
from workflows.messages import ids
from workflows.messages.fleet import CellRole, Elasticity

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NAME = "succession"


async def optimizer_steps(folder: Path, cell: int) -> int | None:
    """What the cell's training actor says of its own optimizer."""
    async with ActorClient(load_run(folder).actor_url(cell), Secrets.of(folder).admin_key) as actor:
        return (await actor.status()).optimizer_steps


async def core_of(run: Run) -> int:
    handle = run.client.get_workflow_handle(ids.scheduler_id(NAME))
    return (await ask(handle, "elasticity", Elasticity)).core


async def test_the_core_leaves_in_mid_burst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Training takes long enough to be seen going on.
    slow = {"trainer": "paced", "paced_trainer": PacedTrainer(tokens_per_second=300)}
    fleet = paced_fleet(tmp_path, run=NAME, cells=3).model_copy(update=slow)
    folder = tmp_path / "run"
    async with LocalStack(fleet, folder) as stack:
        await stack.ready(timeout_seconds=300)
        run = Run(stack)
        await run.rested()
        assert await optimizer_steps(folder, 0) == 0
        handle = await run.start(burst(NAME, steps=3))
        await run.until(lambda state: state.cells[0].role is CellRole.TRAINING, "the core trains")
        assert "cell 0 leaves" in await cells.reclaim(load_run(folder), 0, 300)
        await run.until(lambda state: 0 not in {cell.index for cell in state.cells}, "cell 0 has left")
        core = await core_of(run)
        assert core in (1, 2)
        report = await handle.result()
        assert (report["version"], len(report["steps"])) == (3, 3)
        assert await optimizer_steps(folder, core) == 3
        assert await optimizer_steps(folder, 3 - core) is None
        await asyncio.to_thread(cells.cells_show, run_dir=folder)
        (shown,) = [line for line in capsys.readouterr().out.splitlines() if "core, may be reclaimed" in line]
        assert shown.split("│")[1].strip() == str(core)
        assert core_on_record(stack.records) == (core, 1)
    async with LocalStack(None, folder) as stack:
        await stack.ready(timeout_seconds=300)
        run = Run(stack)
        await run.rested()
        assert "cell-0" not in stack.processes()
        assert (await core_of(run), await optimizer_steps(folder, core)) == (core, 3)
        report = await (await run.start(burst(NAME, "second", steps=1))).result()
        assert report["version"] == 4
        assert await optimizer_steps(folder, core) == 4
        await run.rested()
        with stack.records.connect() as connection:
            rows = connection.execute(select(executions.c.outcome, executions.c.closed_at)).all()
            assert len(rows) == 24 + 8
            assert all(row.outcome == "scored" and row.closed_at is not None for row in rows)
            assert connection.scalars(select(updates.c.version)).all() == [0, 1, 2, 3, 4]
            assert [row.cell for row in connection.execute(select(cores))] == [core]
            query = select(transitions.c.cell, transitions.c.result).where(transitions.c.direction == "take_over")
            assert connection.execute(query).all() == [(core, "done")]
    assert load_run(folder).gone == (0,)
    audit = audit_run(folder, at_rest=True)
    assert not audit.findings, audit.findings
