"""The harness host as a process, under a real Temporal: killed, terminated behind its back, stopped."""

import asyncio
import base64
import http.server
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from infra.ports import free_ports
from infra.processes.launch import end_marked, running
from infra.processes.tree import living, marked
from infra.records.database import open_database
from infra.records.executions import ExecutionRecords, execution_of
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, Secrets
from infra.temporal.server import server_command
from infra.workspaces import ExecutionFolder
from workflows.messages import ids
from workflows.messages.burst import HarnessChoice, Limits, Purpose, Sampling
from workflows.messages.execution import (
    Evaluation,
    ExecutionSpec,
    FinishExecution,
    HarnessRun,
    PreparedWorkspace,
    ProcessedExecution,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

ENDED = (0, -signal.SIGALRM)
"""How a host that was told to stop ends: by itself or, on a very busy machine, when its grace is over."""
CHECKOUT = Path(__file__).parents[3]


@workflow.defn(name="WholeExecution")
class WholeExecution:
    """Every step of the host, one after the other."""

    @workflow.run
    async def run(self, spec: ExecutionSpec) -> Evaluation:
        short = {"task_queue": ids.harness_queue(spec.run), "start_to_close_timeout": timedelta(seconds=200)}
        await workflow.execute_activity("prepare_workspace", spec, result_type=PreparedWorkspace, **short)
        run = await workflow.execute_activity(
            "run_harness",
            spec,
            result_type=HarnessRun,
            task_queue=ids.watch_queue(spec.run),
            start_to_close_timeout=timedelta(seconds=900),
            heartbeat_timeout=timedelta(seconds=2),
        )
        evaluation = await workflow.execute_activity(
            "evaluate_workspace", spec, result_type=Evaluation, heartbeat_timeout=timedelta(seconds=2), **short
        )
        await workflow.execute_activity("process_execution", spec, result_type=ProcessedExecution, **short)
        finish = FinishExecution(spec=spec, run=run, evaluation=evaluation)
        await workflow.execute_activity("finish_execution", finish, **short)
        return evaluation


class _Admin(http.server.BaseHTTPRequestHandler):
    """The proxy's control API, saying yes."""

    def _yes(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = _yes

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def manifest(tmp_path: Path) -> Iterator[RunManifest]:
    temporal, ui, proxy, admin = free_ports(4)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    manifest = RunManifest(
        fleet=Fleet(run="host-test"),
        root=str(CHECKOUT),
        run_dir=str(run_dir),
        temporal_address=f"127.0.0.1:{temporal}",
        temporal_ui=f"http://127.0.0.1:{ui}",
        proxy_port=proxy,
        proxy_admin_port=admin,
        engine_ports=(),
        actor_ports=(),
        linker_ports=(),
    )
    manifest.save()
    Secrets.of(run_dir, create=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", admin), _Admin)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with (run_dir / "temporal.log").open("w") as log:
        process = subprocess.Popen(server_command(manifest), stdout=log, stderr=log)
    yield manifest
    process.terminate()
    process.wait()
    server.shutdown()
    server.server_close()
    for folder in manifest.workspaces.glob("*/*/*"):
        end_marked(str(folder))


@pytest.fixture
def start_host(manifest: RunManifest) -> Iterator:
    started: list[subprocess.Popen] = []

    def start() -> subprocess.Popen:
        with (manifest.folder / "host.log").open("a") as log:
            command = [sys.executable, "-m", "workers.harness_host", "--run-dir", manifest.run_dir]
            process = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
async def client(manifest: RunManifest):
    deadline = time.monotonic() + 120
    while True:
        try:
            client = await Client.connect(manifest.temporal_address, data_converter=pydantic_data_converter)
            break
        except RuntimeError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
    runner = SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_all_modules())
    async with Worker(client, task_queue="host-test", workflows=[WholeExecution], workflow_runner=runner):
        yield client


def spec_of(manifest: RunManifest, script: str, test: str = "echo 1 > $GYRE_LOGS_DIR/verifier/reward.txt"):
    task = manifest.folder / "task"
    for name in ("environment", "tests"):
        (task / name).mkdir(parents=True, exist_ok=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Do it.")
    (task / "tests/test.sh").write_text(test)
    return ExecutionSpec(
        run=manifest.run,
        burst="first",
        group=0,
        member=0,
        purpose=Purpose.TRAIN,
        task=str(task),
        seed=0,
        dispatch_version=0,
        sampling=Sampling(),
        harness=HarnessChoice(name="command", settings={"command": f"sh -c {shlex.quote(script)}"}),
        limits=Limits(wall_seconds=900, grace_seconds=1),
    )


async def until(condition, seconds: float = 120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition never came true"
        await asyncio.sleep(0.05)


async def test_kill_9_of_the_host_while_a_harness_runs_and_while_it_is_graded(manifest, start_host, client):
    harness = "echo x >> starts; while [ ! -e go ]; do sleep 0.1; done"
    test = "echo x >> $GYRE_WORKSPACE/gradings; while [ ! -e $GYRE_WORKSPACE/grade ]; do sleep 0.1; done; "
    spec = spec_of(manifest, harness, test + "echo 0.5 > $GYRE_LOGS_DIR/verifier/reward.txt")
    folder = ExecutionFolder.of(manifest.workspaces, spec)
    host = start_host()
    handle = await client.start_workflow("WholeExecution", spec, id=execution_of(spec), task_queue="host-test")
    await until(lambda: (folder.app / "starts").exists())
    host.kill()
    host.wait()
    await until(lambda: running(folder.run(1)) is not None)  # its first act and that of its command come at once
    (folder.app / "go").touch()
    host = start_host()
    await until(lambda: (folder.app / "gradings").exists())
    host.kill()
    host.wait()
    (folder.app / "grade").touch()
    host = start_host()
    evaluation = Evaluation.model_validate(await handle.result())
    assert evaluation.reward == 0.5
    assert (folder.app / "starts").read_text() == "x\n"
    assert (folder.app / "gradings").read_text() == "x\n"
    engine = open_database(manifest.database_url)
    row = ExecutionRecords(engine).get(execution_of(spec))
    engine.dispose()
    assert row is not None
    assert (row.state, row.attempt, row.reward, row.end_reason) == ("closed", 1, 0.5, "submitted")
    assert living(marked(str(folder.root))) == []
    host.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(host.wait, 100) in ENDED


async def test_a_terminated_workflow_leaves_no_harness(manifest, start_host, client):
    spec = spec_of(manifest, "trap '' TERM; touch ready; while :; do sleep 0.1; done")
    folder = ExecutionFolder.of(manifest.workspaces, spec)
    host = start_host()
    handle = await client.start_workflow("WholeExecution", spec, id=execution_of(spec), task_queue="host-test")
    await until(lambda: (folder.app / "ready").exists() and running(folder.run(1)) is not None)
    host.send_signal(signal.SIGTERM)  # an orderly stop leaves the harness running
    assert await asyncio.to_thread(host.wait, 100) in ENDED
    assert running(folder.run(1)) is not None
    await handle.terminate("by hand")
    broken = ExecutionFolder(manifest.workspaces / "before" / "0000" / "00")  # one that cannot be read, looked at first
    broken.make()
    broken.mint_token()
    broken.spec.write_text("{")
    start_host()
    await until(lambda: living(marked(str(folder.root))) == [] and not folder.token.exists())
    engine = open_database(manifest.database_url)
    row = ExecutionRecords(engine).get(execution_of(spec))
    engine.dispose()
    assert row is not None
    assert (row.state, row.end_reason, row.outcome) == ("closed", "terminated", "no_artifact")


async def test_cancelling_the_workflow_ends_the_harness(manifest, start_host, client):
    spec = spec_of(manifest, "touch ready; sleep 1000")
    folder = ExecutionFolder.of(manifest.workspaces, spec)
    start_host()
    handle = await client.start_workflow("WholeExecution", spec, id=execution_of(spec), task_queue="host-test")
    await until(lambda: (folder.app / "ready").exists())
    await handle.cancel()
    await until(lambda: living(marked(str(folder.root))) == [])
    await until(lambda: (folder.run(1) / "result.json").exists())  # the runner's last act, behind the last process


async def test_no_secret_enters_the_history_of_an_execution(manifest, start_host, client):
    spec = spec_of(manifest, 'printf %s "$OPENAI_API_KEY" > key; printf %s "$OPENAI_BASE_URL" > url; env; exit 1')
    folder = ExecutionFolder.of(manifest.workspaces, spec)
    start_host()
    handle = await client.start_workflow("WholeExecution", spec, id=execution_of(spec), task_queue="host-test")
    await handle.result()
    token, admin_key = (folder.app / "key").read_text(), Secrets.of(manifest.folder).admin_key
    assert len(token) > 30
    assert token in (folder.app / "url").read_text()
    exported = (await handle.fetch_history()).to_json()
    payloads = [base64.b64decode(data).decode(errors="replace") for data in re.findall(r'"data": "([^"]+)"', exported)]
    assert any(execution_of(spec).split("/")[0] in payload for payload in payloads)  # payloads are really read
    for text in (exported, *payloads):
        assert token not in text
        assert admin_key not in text
    # The agent's own environment holds its token and nothing else of ours.
    printed = (folder.run(1) / "stdout.log").read_text()
    assert admin_key not in printed
    assert [line for line in printed.splitlines() if token in line and line[:7] not in ("OPENAI_", "ANTHROP")] == []
    assert not folder.token.exists()
