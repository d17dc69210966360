"""The supervisor on a real Temporal server and real processes that stand in for the components."""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import psutil
import pytest

from infra.code import Code
from infra.ports import is_free
from infra.processes.identity import ProcessIdentity
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, load_run
from infra.temporal.server import SEARCH_ATTRIBUTES
from workers.supervisor import ComponentSpec, LocalStack, StackEvent
from workers.supervisor.components import temporal_server
from workers.supervisor.run_folder import open_manifest
from workers.supervisor.tree import run_processes
from workflows.messages.errors import InvalidInput, Transient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ANSWERS = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(300)
"""


def python(script: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", script, *map(str, arguments))


def temporal_only(manifest: RunManifest) -> list[ComponentSpec]:
    return [temporal_server(manifest)]


def with_server(manifest: RunManifest) -> list[ComponentSpec]:
    async def answers(context) -> bool:
        try:
            return (await context.http.get(f"{manifest.proxy_url}/")).status_code == 200
        except httpx2.TransportError:
            return False

    return [*temporal_only(manifest), ComponentSpec("proxy", python(ANSWERS, manifest.proxy_port), answers)]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(run="stack-test", weights_folder=str(tmp_path / "memory"))


async def test_a_killed_component_comes_back_and_a_stopped_stack_leaves_nothing(fleet, tmp_path):
    events: list[StackEvent] = []
    run = tmp_path / "run"
    async with LocalStack(fleet, run, components=with_server, on_event=events.append) as stack:
        await stack.ready(timeout_seconds=200)
        old = stack.kill("proxy")
        new = await stack.restarted("proxy", old, timeout_seconds=200)
        assert new != old
        assert stack.restarts("proxy") == 1
        assert await stack.client.service_client.check_health()

        with pytest.raises(InvalidInput, match="running already"):
            await LocalStack(fleet, run, components=with_server).__aenter__()
        assert await stack.client.service_client.check_health(), "the refused one has stopped nothing"

        server = stack.kill("temporal")
        await stack.restarted("temporal", server, timeout_seconds=200)
        assert await stack.client.service_client.check_health()
        deadline = time.monotonic() + 120
        while stack.peak_pss_bytes <= 50 << 20 and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        assert stack.peak_pss_bytes > 50 << 20
        manifest = stack.manifest

    assert run_processes(run) == []
    assert is_free(manifest.proxy_port)
    proxy = [event.event for event in events if event.component == "proxy"]
    assert proxy == ["started", "ready", "died", "restarting", "started", "ready", "stopping", "stopped"]
    lines = [json.loads(line) for line in (run / "supervisor.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if line["component"] == "proxy"] == proxy


async def test_a_run_goes_on_with_its_workflows_and_ports(fleet, tmp_path):
    async with LocalStack(fleet, tmp_path / "run", components=temporal_only) as stack:
        first = stack.manifest
        await stack.client.start_workflow("Burst", id="r/burst/x", task_queue="gyre")
    async with LocalStack(None, tmp_path / "run", components=temporal_only) as stack:
        assert stack.manifest.model_copy(update={"code": first.code}) == first
        assert (await stack.client.get_workflow_handle("r/burst/x").describe()).workflow_type == "Burst"


async def test_a_run_that_goes_on_with_other_code_says_so_in_one_line(fleet, tmp_path):
    events: list[StackEvent] = []
    run = tmp_path / "run"
    open_manifest(fleet, run).model_copy(update={"code": Code(version="0" * 40, workflows="f" * 12)}).save()
    async with LocalStack(None, run, components=temporal_only, on_event=events.append) as stack:
        code = stack.manifest.code
    assert code is not None
    assert load_run(run).code == code
    told = [event for event in events if event.component == "code"]
    assert [event.event for event in told] == ["changed"]
    assert told[0].detail.startswith("recorded until now by code 000000000000, goes on with ")
    assert f"the workflow code changed from ffffffffffff to {code.workflows}: " in told[0].detail
    assert json.loads((run / "supervisor.jsonl").read_text().splitlines()[0])["detail"] == told[0].detail


async def test_what_ignores_the_polite_signal_is_killed_with_all_it_started(fleet, tmp_path):
    note = tmp_path / "child.pid"

    def components(manifest: RunManifest) -> list[ComponentSpec]:
        return [
            *temporal_only(manifest),
            ComponentSpec("stubborn", python(STUBBORN, note), stage=2, grace_seconds=0.5),
        ]

    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        async with LocalStack(fleet, tmp_path / "run", components=components) as stack:
            while not note.exists() or not note.read_text():
                await asyncio.sleep(0.05)
            pid = stack.processes()["stubborn"]
            child = ProcessIdentity.of(int(note.read_text()))
        assert pid is not None
        assert not psutil.pid_exists(pid)
        assert child is not None
        assert not child.alive()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_a_component_that_cannot_run_is_named_with_its_log(fleet, tmp_path):
    def components(manifest: RunManifest) -> list[ComponentSpec]:
        broken = "import sys; print('no model at infra/nowhere'); sys.exit(3)"

        async def never(_) -> bool:
            return False

        return [*temporal_only(manifest), ComponentSpec("cell-0", python(broken), never)]

    async with LocalStack(fleet, tmp_path / "run", components=components) as stack:
        with pytest.raises(
            Transient, match=r"(?s)cell-0 died \d+ times; .*cell-0\.log ends:.*no model at infra/nowhere"
        ):
            await stack.ready(timeout_seconds=200)


async def test_components_end_with_a_supervisor_that_was_killed(tmp_path):
    script = f"""
import asyncio
import dataclasses
from pathlib import Path
from infra.settings.fleet import Fleet
from tests.workers.supervisor.test_stack import with_server
from workers.supervisor import LocalStack

async def main():
    fleet = Fleet(run="orphans", weights_folder={str(tmp_path / "memory")!r})
    async with LocalStack(fleet, Path({str(tmp_path / "run")!r}), components=with_server) as stack:
        await stack.ready(timeout_seconds=200)
        print("ready", flush=True)
        await asyncio.sleep(120)

asyncio.run(main())
"""
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert supervisor.stdout is not None
    assert await supervisor.stdout.readline() == b"ready\n"
    assert len(run_processes(tmp_path / "run")) == 2
    supervisor.kill()
    await supervisor.wait()
    deadline = time.monotonic() + 100
    while run_processes(tmp_path / "run") and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert run_processes(tmp_path / "run") == []


async def test_the_server_knows_our_search_attributes(fleet, tmp_path):
    async with LocalStack(fleet, tmp_path / "run", components=temporal_only) as stack:
        query = " and ".join(f"{name} = 'x'" for name in SEARCH_ATTRIBUTES)
        assert [workflow async for workflow in stack.client.list_workflows(query)] == []


async def test_a_fleet_can_use_the_user_s_own_temporal(fleet, tmp_path, monkeypatch):
    own = fleet.model_copy(update={"temporal": "environment"})
    async with LocalStack(fleet, tmp_path / "theirs", components=temporal_only) as theirs:
        monkeypatch.setenv("TEMPORAL_ADDRESS", theirs.manifest.temporal_address)
        monkeypatch.setenv("TEMPORAL_NAMESPACE", "default")
        async with LocalStack(own, tmp_path / "run", components=lambda _: []) as stack:
            assert stack.manifest.temporal_address == theirs.manifest.temporal_address
            await stack.client.start_workflow("Burst", id="r/burst/y", task_queue="gyre")
        handle = theirs.client.get_workflow_handle("r/burst/y")
        assert (await handle.describe()).workflow_type == "Burst", "their server was not stopped with our stack"


async def test_a_server_without_our_search_attributes_is_refused_with_the_command_that_adds_them(fleet, tmp_path):
    def bare(manifest: RunManifest) -> list[ComponentSpec]:
        spec = temporal_server(manifest)
        argv = list(spec.argv)
        while "--search-attribute" in argv:
            at = argv.index("--search-attribute")
            del argv[at : at + 2]
        return [dataclasses.replace(spec, argv=tuple(argv))]

    with pytest.raises(InvalidInput, match=r"temporal operator search-attribute create .*--name Phase --type Keyword"):
        await LocalStack(fleet, tmp_path / "run", components=bare).__aenter__()
    assert run_processes(tmp_path / "run") == []
