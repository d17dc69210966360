"""Kill -9 of every kind of process in the middle of a burst: it still ends, with exact counts and a clean audit.

What was trained is the multiset of an undisturbed run: every target of every valid execution, each once.

Real Temporal, workflows, proxy, harness, scoring and training; the engines are the paced double, so that three equal
cells fit a small machine.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from sqlalchemy import func, select
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from infra.audit import audit_run
from infra.processes.tree import MARKER
from infra.records.schema import executions
from tests.integration.conftest import WAIT_SECONDS, Run
from tests.integration.scene import burst, paced_fleet
from tests.integration.trained import checkpoints_agree, trained
from workers.supervisor import LocalStack
from workflows.messages.fleet import CellRole
from workflows.policy.state import PolicyState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.asyncio(loop_scope="module")]

EXECUTIONS = 16
BURSTS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    folder = tmp_path_factory.mktemp("kills")
    fleet = paced_fleet(folder, run="kills", turns=6, tokens_per_second=25)
    async with LocalStack(fleet, folder / "run") as stack:
        await stack.ready(timeout_seconds=300)
        yield Run(stack)


def _children(pid: int, words: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that has ended meanwhile
            if words in " ".join(child.cmdline()):
                found.append(child)
    return found


async def _kill_a_harness(run: Run) -> None:
    """A harness process of this run, not its runner or a command. They come and go, so look for a while."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get(MARKER, "").startswith(str(run.stack.run_dir))
                if mine and any("mini-swe-agent" in part for part in process.cmdline()):
                    process.send_signal(signal.SIGKILL)
                    return
        await asyncio.sleep(0.1)
    pytest.fail("no harness runs")


async def _terminate_an_execution(run: Run) -> str:
    """The one that was launched last; it may all the same end by itself before it is reached: then the next one."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        roster = (await run.scheduler())["accounts"]["roster"]
        if not roster:
            break
        victim = max(roster, key=lambda name: (roster[name], name))
        try:
            await run.client.get_workflow_handle(victim).terminate("an operator did it")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            await asyncio.sleep(0.1)
            continue
        return victim
    pytest.fail("no execution runs")


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
        known = connection.scalar(select(func.count()).select_from(executions))
    assert len(mine) == EXECUTIONS
    assert state.finished == known
    assert all(row.closed_at is not None for row in mine)
    found = trained(run.stack, report["burst"])
    assert set(found.targets.values()) == {1}
    assert dict(found.executions) == found.owed
    assert EXECUTIONS - harmed <= len(found.owed)
    assert found.owed.keys() <= {row.execution for row in mine}
    checkpoints_agree(run.stack)


async def _amid(run: Run, name: str, condition: Callable[[PolicyState], bool]) -> WorkflowHandle[Any, Any]:
    """A burst in that state. Whether anybody sees it in time is a matter of luck: as many bursts as it takes."""
    for number in range(BURSTS):
        await run.rested()
        handle = await run.start(burst("kills", f"{name}-{number}"))
        if await run.caught(handle, condition):
            return handle
        await _finish(run, handle)
    pytest.fail(f"nobody saw it in {BURSTS} bursts")


def _many_run(state: PolicyState) -> bool:
    return state.launched - state.finished >= 8


async def test_satellite(run: Run) -> None:
    handle = await _amid(run, "satellite", _many_run)
    run.stack.kill("cell-1")
    await _finish(run, handle)


async def test_core_while_it_trains(run: Run) -> None:
    handle = await _amid(run, "core", lambda state: state.cells[0].role is CellRole.TRAINING)
    run.stack.kill("cell-0")
    await _finish(run, handle)


async def test_engine_alone(run: Run) -> None:
    handle = await _amid(run, "engine", _many_run)
    pid = run.stack.processes()["cell-2"]
    assert pid is not None
    engines = _children(pid, "workers.cell.rollout.paced")
    assert engines
    os.kill(engines[0].pid, signal.SIGKILL)
    await _finish(run, handle)


@pytest.mark.parametrize("component", ["proxy", "harness-host", "control"])
async def test_component(run: Run, component: str) -> None:
    handle = await _amid(run, component, lambda state: state.finished >= 1 and state.launched - state.finished >= 4)
    run.stack.kill(component)
    await _finish(run, handle)


async def test_harness(run: Run) -> None:
    handle = await _amid(run, "harness", _many_run)
    await _kill_a_harness(run)
    await _finish(run, handle, harmed=1)


async def test_terminated_execution_is_counted_once(run: Run) -> None:
    """`temporal workflow terminate` of an execution: the sweep closes it."""
    ends: list[str | None] = []
    while not ends or ends[-1] != "terminated":
        assert len(ends) < BURSTS, ends
        handle = await _amid(run, f"terminated-{len(ends)}", _many_run)
        victim = await _terminate_an_execution(run)
        await _finish(run, handle, harmed=1)
        with run.stack.records.connect() as connection:
            row = connection.execute(select(executions).where(executions.c.execution == victim)).one()
        # One that had just come to its own end is recorded with that end; it was counted once all the same.
        ends.append(row.end_reason)
