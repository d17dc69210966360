"""Life and death of the engine's processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.engine import EngineClient, GenerateRequest, new_rid
from tests.workers.cell.rollout.conftest import parameters_of, wait_ready
from tests.workers.cell.rollout.tiny_model import VOCABULARY
from workers.cell.rollout.command import HERE
from workers.cell.rollout.server import EngineServer
from workflows.messages.errors import EngineUnavailable

ROOT = Path(__file__).parents[4]


def living(group: int) -> list[int]:
    """Processes of a group that are not zombies."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def wait_gone(group: int, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while living(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return living(group)


def test_a_leashed_process_dies_with_its_parent():
    program = (
        "import subprocess, sys, os\n"
        f"p = subprocess.Popen([sys.executable, {str(HERE / 'leash.py')!r}, str(os.getpid()), 'sleep', '3600'],"
        " start_new_session=True)\n"
        "print(p.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = int(parent.stdout.readline())
    try:
        assert living(child) == [child]
        parent.kill()
        parent.wait(120)
        assert wait_gone(child, 120) == []
    finally:
        parent.stdout.close()
        parent.stdin.close()
        parent.wait(120)


def test_a_leash_whose_parent_is_gone_starts_nothing():
    run = subprocess.run(
        [sys.executable, str(HERE / "leash.py"), "1", "echo", "started"], capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert "started" not in run.stdout


async def kill_while_streaming(client: EngineClient, pid: int, seen: list[int]) -> None:
    request = GenerateRequest(new_rid(), [5, 6, 7], 3000, "run|0|x", temperature=0, ignore_eos=True)
    async for chunk in client.generate(request):
        if not seen:
            os.kill(pid, signal.SIGKILL)
        seen += chunk.ids


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_an_engine_that_cannot_start_says_why(tmp_path):
    server = EngineServer(parameters_of(tmp_path / "no-model"), tmp_path / "logs" / "engine.log")
    server.start()
    with pytest.raises(EngineUnavailable, match="running already"):
        server.start()
    try:
        async with EngineClient(server.parameters.url, vocabulary=VOCABULARY) as client:
            with pytest.raises(EngineUnavailable, match="no-model"):
                await server.ready(client)
        assert server.exit_code not in (None, 0)
    finally:
        await server.stop()


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_no_process_of_an_engine_survives_it(models, tmp_path):
    server = EngineServer(parameters_of(models["a"]), tmp_path / "engine.log")
    server.start()
    try:
        await wait_ready(server)
        assert server.pid is not None
        assert len(living(server.pid)) >= 3
        async with EngineClient(server.parameters.url, vocabulary=VOCABULARY) as client:
            seen: list[int] = []
            with pytest.raises(EngineUnavailable):
                await kill_while_streaming(client, server.pid, seen)
            assert seen, "what came before the death is real"
        assert await asyncio.wait_for(server.died(), 120) == -signal.SIGKILL
        left = await asyncio.to_thread(wait_gone, server.pid, 120)
        await server.stop()
        assert left == []
        assert not server.alive
        server.start()
        assert server.alive, "it can be started again"
    finally:
        await server.stop()
