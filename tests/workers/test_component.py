"""What is told to stop ends, whether or not somebody is there to insist."""

import signal
import subprocess
import sys

from infra.settings.fleet import Fleet
from workers.component import CELL_GRACE_SECONDS, GRACE_SECONDS
from workers.supervisor.components import STOPPED_TOGETHER, fleet_components
from workers.supervisor.run_folder import open_manifest

TOLD = """
import asyncio, os, signal
from workers.component import when_told_to_stop

async def main():
    stop = asyncio.Event()
    when_told_to_stop(stop.set, grace_seconds={grace})
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    await stop.wait()
    print("told", flush=True)
    {then}

asyncio.run(main())
"""
OVER = """
import asyncio
from workers.component import end_within

async def main():
    for grace in (600, -1.9, 600):
        end_within(grace)
    await asyncio.to_thread(lambda: [None for _ in iter(int, 1)])

asyncio.run(main())
"""
ORPHAN = """
import os, time
from workers.supervisor.tree import tied_to_parent

parent, tie = os.getpid(), tied_to_parent()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    print("alone", flush=True)
    tie()
    print("alive", flush=True)
os._exit(0)
"""


def ended(script: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, done.stdout.split()


def test_a_component_ends_by_itself_within_its_grace():
    assert ended(TOLD.format(grace=600, then="")) == (0, ["told"])


def test_one_that_hangs_at_its_end_is_ended_by_the_kernel():
    """A thread that never comes back, as in a client whose server is gone, holds the interpreter."""
    hang = "await asyncio.to_thread(lambda: [None for _ in iter(int, 1)])"
    code, said = ended(TOLD.format(grace=-1.9, then=hang))
    assert code == -signal.SIGALRM
    assert said in (["told"], [])  # a tenth of a second may be over before it says so


def test_what_is_over_by_itself_ends_at_the_earliest_time_that_was_said():
    assert ended(OVER) == (-signal.SIGALRM, [])


def test_a_child_that_is_started_while_its_supervisor_dies_does_not_live_on():
    """The kernel is asked too late: it has nobody to wait for any more."""
    assert ended(ORPHAN) == (0, ["alone"])


def test_everything_is_stopped_once_harnesses_first_and_temporal_last(tmp_path):
    specs = fleet_components(
        open_manifest(Fleet(run="ends", weights_folder=str(tmp_path / "memory")), tmp_path / "run")
    )
    groups = [{spec.name for spec in specs if spec.stage in stages} for stages in STOPPED_TOGETHER]
    assert groups == [{"harness-host"}, {"cell-0", "cell-1", "cell-2", "proxy", "control"}, {"temporal"}]
    graces = {spec.name: spec.grace_seconds for spec in specs}
    assert {graces.pop(f"cell-{index}") for index in range(3)} == {CELL_GRACE_SECONDS}
    assert set(graces.values()) == {GRACE_SECONDS}
