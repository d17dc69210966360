import os
import subprocess
import sys
import time

from infra.processes.tree import MARKER
from workers.supervisor.memory import PeakMemory, pss_bytes
from workers.supervisor.tree import RUN_MARKER, component_processes, harness_processes, run_processes

SLEEP = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(3600)"]


def spawn(**environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(SLEEP, env={**os.environ, **environment}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_what_the_run_started_belongs_to_it(tmp_path):
    run = tmp_path / "run"
    started = [
        spawn(**{RUN_MARKER: str(run)}),
        spawn(**{MARKER: f"{run}/workspaces/a"}),
        spawn(**{RUN_MARKER: f"{run}-2"}),
        spawn(**{MARKER: f"{run}-2/workspaces/a"}),
    ]
    component, harness, *_ = started
    try:
        assert [p.pid for p in component_processes(run)] == [component.pid]
        assert [p.pid for p in harness_processes(run)] == [harness.pid]
        assert {p.pid for p in run_processes(run)} == {component.pid, harness.pid}
        memory = PeakMemory(lambda: run_processes(run))
        total = memory.sample()
        assert total > 1_000_000
        component.kill()
        component.wait()
        assert memory.sample() < total
        assert memory.peak_bytes == total
        assert [p.pid for p in run_processes(run)] == [harness.pid]
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_memory_of_a_process_that_ended_is_none():
    process = spawn()
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    deadline = time.monotonic() + 60
    while pss_bytes(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pss_bytes(process.pid) == 0
