"""Kill -9 of every kind of process in the middle of a burst: it still ends, with exact counts and a clean audit.

What was trained is the multiset of an undisturbed run: every target of every valid execution, each once.

Real Temporal, workflows, proxy, harness, scoring and training; the engines are the paced double, so that three equal
cells fit a small machine.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from sqlalchemy import select

from infra.audit import audit_run
from infra.processes.tree import MARKER
from infra.records.schema import executions
from tests.integration.conftest import Run
from tests.integration.scene import burst, paced_fleet
from tests.integration.trained import checkpoints_agree, trained
from workers.supervisor import LocalStack
from workflows.messages.fleet import CellRole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

EXECUTIONS = 16


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    folder = tmp_path_factory.mktemp("kills")
    fleet = paced_fleet(folder, run="kills", turns=6, tokens_per_second=25)
    async with LocalStack(fleet, folder / "run") as stack:
        await stack.ready(timeout_seconds=300)
        yield Run(stack)


def _children(pid: int, words: str) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if words in " ".join(child.cmdline())]


async def _harnesses(run: Run) -> list[psutil.Process]:
    """Harness processes of this run, not their runners or commands; they come and go, so look for a while."""
    found: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        for process in psutil.process_iter():
            try:
                mine = process.environ().get(MARKER, "").startswith(str(run.stack.run_dir))
                if mine and any("mini-swe-agent" in part for part in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        await asyncio.sleep(0.1)
    return found


async def _finish(run: Run, handle, *, harmed: int = 0) -> None:
    """The burst ends, nothing is lost or counted twice, and the records agree.

    At most `harmed` executions were killed themselves and may have nothing to train; all others are trained whole.
    """
    report = await handle.result()
    assert report["version"] >= 1
    assert [step["groups"] for step in report["steps"]] == [2, 2]
    state = await run.rested()
    assert state.dispatched == state.launched == state.finished
    audit = audit_run(Path(run.stack.run_dir), at_rest=True)
    assert not audit.findings, audit.findings
    with run.stack.records.connect() as connection:
        mine = connection.execute(
            select(executions.c.execution, executions.c.closed_at).where(executions.c.burst == report["burst"])
        ).all()
    assert len(mine) == EXECUTIONS
    assert all(row.closed_at is not None for row in mine)
    found = trained(run.stack, report["burst"])
    assert set(found.targets.values()) == {1}
    assert dict(found.executions) == found.owed
    assert EXECUTIONS - harmed <= len(found.owed)
    assert found.owed.keys() <= {row.execution for row in mine}
    checkpoints_agree(run.stack)


async def test_satellite(run: Run) -> None:
    await run.rested()
    handle = await run.start(burst("kills", "satellite"))
    await run.until(lambda state: state.launched - state.finished >= 8, "executions run")
    run.stack.kill("cell-1")
    await _finish(run, handle)


async def test_core_while_it_trains(run: Run) -> None:
    await run.rested()
    handle = await run.start(burst("kills", "core"))
    await run.until(lambda state: state.cells[0].role is CellRole.TRAINING, "the core trains")
    run.stack.kill("cell-0")
    await _finish(run, handle)


async def test_engine_alone(run: Run) -> None:
    await run.rested()
    handle = await run.start(burst("kills", "engine"))
    await run.until(lambda state: state.launched - state.finished >= 8, "executions run")
    pid = run.stack.processes()["cell-2"]
    assert pid is not None
    engines = _children(pid, "workers.cell.rollout.paced")
    assert engines
    os.kill(engines[0].pid, signal.SIGKILL)
    await _finish(run, handle)


@pytest.mark.parametrize("component", ["proxy", "harness-host", "control"])
async def test_component(run: Run, component: str) -> None:
    await run.rested()
    handle = await run.start(burst("kills", component))
    await run.until(lambda state: state.finished >= 1 and state.launched - state.finished >= 4, "executions run")
    run.stack.kill(component)
    await _finish(run, handle)


async def test_harness(run: Run) -> None:
    await run.rested()
    handle = await run.start(burst("kills", "harness"))
    await run.until(lambda state: state.launched - state.finished >= 8, "executions run")
    victims = await _harnesses(run)
    assert victims
    victims[0].send_signal(signal.SIGKILL)
    await _finish(run, handle, harmed=1)


async def test_terminated_execution_is_counted_once(run: Run) -> None:
    """`temporal workflow terminate` of an execution: the sweep closes it."""
    await run.rested()
    before = (await run.policy()).finished
    handle = await run.start(burst("kills", "terminated"))
    await run.until(lambda state: state.launched - state.finished >= 8, "executions run")
    roster = (await run.scheduler())["accounts"]["roster"]
    victim = sorted(roster)[0]
    await run.client.get_workflow_handle(victim).terminate("an operator did it")
    await _finish(run, handle, harmed=1)
    assert (await run.policy()).finished == before + EXECUTIONS
    with run.stack.records.connect() as connection:
        row = connection.execute(select(executions).where(executions.c.execution == victim)).one()
    assert row.end_reason == "terminated"
