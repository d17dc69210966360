"""`gyre up` as a person runs it: it says what to type next, and Ctrl-C ends all of it."""

import asyncio
import os
import signal
import sys

import pytest

from infra.settings.fleet import Fleet
from tests.workers.supervisor.test_stack import with_server
from workers.supervisor import LocalStack
from workers.supervisor.hints import next_steps
from workers.supervisor.tree import run_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = """
import asyncio, sys
from pathlib import Path
from rich.console import Console
from infra.settings.fleet import Fleet
from tests.workers.supervisor.test_stack import with_server
from workers.cli.up import say, serve
from workers.supervisor import LocalStack

console = Console(width=300)
folder = Path(sys.argv[1])
fleet = Fleet(run="up", weights_folder=str(folder / "memory"))
stack = LocalStack(fleet, folder / "run", components=with_server, on_event=lambda event: say(console, event))
asyncio.run(serve(stack, console, ready_seconds=300))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_stops_everything(tmp_path, number):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-c",
        SCRIPT,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None
    shown = ""
    while "Ctrl-C stops everything" not in shown:
        line = await process.stdout.readline()
        assert line, shown
        shown += line.decode()
    assert "web UI: http://127.0.0.1:" in shown
    assert "--task-queue gyre --type Burst --workflow-id up/burst/first --input-file burst.json" in shown
    assert len(run_processes(tmp_path / "run")) == 2
    process.send_signal(number)
    rest = (await process.stdout.read()).decode()
    assert await process.wait() == 0
    assert "stopped; peak memory" in rest
    assert run_processes(tmp_path / "run") == []


async def test_the_printed_lines_are_commands_that_temporal_understands(tmp_path):
    fleet = Fleet(run="hints", weights_folder=str(tmp_path / "memory"))
    async with LocalStack(fleet, tmp_path / "run", components=with_server) as stack:
        commands = dict(next_steps(stack.manifest))
        burst = tmp_path / "burst.json"
        write = commands["write a burst file"].replace("burst.json", str(burst))
        start = commands["start it"].replace("burst.json", str(burst))
        for command in (write, start):
            shell = await asyncio.create_subprocess_shell(command)
            assert await shell.wait() == 0
        started = await stack.client.get_workflow_handle("hints/burst/first").describe()
        assert (started.workflow_type, started.task_queue) == ("Burst", "gyre")
