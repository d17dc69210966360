"""Workflow workers that are killed and come back with another hash seed, and never keep a workflow in memory."""

import asyncio
import os
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.workflows.histories import broken_tasks, histories_of
from tests.workflows.watching import watching
from tests.workflows.world import FakeWorld

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


async def start(address: str, seed: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.workflows.worker_process",
        address,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
    )


async def test_no_workflow_depends_on_its_worker(temporal_address, client, tmp_path):
    """Cases 52, 56: every task replays the whole history, on four workers with four hash seeds, killed in between."""
    worker = await start(temporal_address, 1)
    world = FakeWorld(client, f"run-{uuid4().hex[:8]}", tmp_path, (4, 4))
    try:
        await world.start()
        async with watching(world) as seen:
            bursts = [await world.start_in_order(name, carry_over=0.5) for name in ("first", "second")]
            waiting = asyncio.gather(*(burst.result() for burst in bursts))
            for seed in range(2, 5):
                done, _ = await asyncio.wait({waiting}, timeout=3)
                worker.kill()
                await worker.wait()
                worker = await start(temporal_address, seed)
                if done:
                    break
            reports = await waiting
            # The surplus group is nobody's to wait for: the last burst may end before it.
            await world.until(lambda state: not state.accounts.roster)
        assert [report.version for report in reports] == [1, 2]
        assert [report.executions for report in reports] == [6, 4]
        assert seen[-1] == (10, 10, 10)
        tasks = [spec.task for spec in world.called("prepare_workspace") if spec.member == 0]
        assert sorted(set(tasks)) == world.tasks[:5]
        for _, history in await histories_of(client, world.run):
            assert broken_tasks(history) == []
    finally:
        await world.close()
        worker.kill()
        await worker.wait()
    assert world.problems == []
