"""Records histories for the replay test: `python -m tests.workflows.record`, by hand, after a change of a workflow.

It plays scenes on a server that suggests continue-as-new early, picks one history for every thing that must replay,
and replaces the folder `histories/`. Nothing is taken out of a history; only the paths of the machine are replaced.

With `--release VERSION` it records nothing: the histories that are there are kept for good as those of a release, which
is part of making it (tests/workflows/saved.py).
"""

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from tests.workflows.histories import has, histories_of
from tests.workflows.saved import TODAY, keep, of_today
from tests.workflows.server import connect, dev_server
from tests.workflows.world import FakeWorld
from workers.control.worker import workflow_worker
from workflows.messages import ids
from workflows.messages.errors import Fenced, TransferFailed
from workflows.messages.fleet import CellSpec, OfferCell, ReclaimCell
from workflows.messages.transition import Resolution

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 300_000

ROLLED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
CANCELLED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED
COMPLETED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
FAILED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED
UPDATED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED
STEP_FAILED = EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED
CHILD_STARTED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED

CUT_OFF = EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED

WANTED: dict[str, tuple[str, tuple["EventType.ValueType", ...]]] = {
    "scheduler-roll-over": ("Scheduler", (ROLLED,)),
    "scheduler-update": ("Scheduler", (UPDATED, STEP_FAILED)),
    "cell-roll-over": ("Cell", (ROLLED, CHILD_STARTED)),
    "cell-update": ("Cell", (UPDATED, CHILD_STARTED)),
    "cell-retired": ("Cell", (COMPLETED, CHILD_STARTED)),
    "scheduler-elastic": ("Scheduler", (UPDATED, ROLLED)),
    "transition": ("RoleTransition", (COMPLETED,)),
    "transition-failed-step": ("RoleTransition", (COMPLETED, STEP_FAILED)),
    "burst": ("Burst", (COMPLETED, CHILD_STARTED)),
    "burst-cancelled": ("Burst", (CANCELLED, CHILD_STARTED)),
    "burst-failed": ("Burst", (FAILED,)),
    "campaign": ("Campaign", (COMPLETED, CHILD_STARTED)),
    "execution": ("AgentExecution", (COMPLETED,)),
    "execution-cancelled": ("AgentExecution", (COMPLETED, CUT_OFF)),
    "execution-update": ("AgentExecution", (COMPLETED, UPDATED, STEP_FAILED)),
    "batch": ("TrainingBatch", (COMPLETED,)),
    "batch-roll-over": ("TrainingBatch", (ROLLED,)),
    "batch-cancelled": ("TrainingBatch", (CANCELLED,)),
    "batch-failed-step": ("TrainingBatch", (COMPLETED, STEP_FAILED)),
}
"""File -> workflow type, and the events its history must have."""


async def blocked(world: FakeWorld, workflow_id: str) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                if await world.handle(workflow_id).query("blocked_steps"):
                    return
            except Exception as error:
                print(f"  {workflow_id}: {error}", file=sys.stderr)
            await asyncio.sleep(0.3)


async def resolve(world: FakeWorld, workflow_id: str) -> None:
    await blocked(world, workflow_id)
    await world.handle(workflow_id).execute_update("resolve_step", Resolution.RETRY)


async def parked_steps(world: FakeWorld) -> None:
    """An execution, an admission and a role change park and are resumed; a step fails once and is retried."""
    world.faults.add("process_execution", error=Fenced("broken"), when=lambda spec: (spec.group, spec.member) == (0, 0))
    world.faults.add("admit_group", error=Fenced("broken"), when=lambda request: request.group == 1)
    world.faults.add("restore_training", error=Fenced("broken"))
    world.faults.add("combine_update", error=TransferFailed("torn"), times=3)
    burst = await world.start_burst(steps=2)
    await resolve(world, ids.execution_id(world.run, "first", 0, 0))
    await resolve(world, ids.scheduler_id(world.run))
    await resolve(world, ids.cell_workflow_id(world.run, 0))
    await burst.result()


async def roll_overs(world: FakeWorld) -> None:
    """Enough micro-steps and bursts that scheduler, cells and batches continue as new."""
    world.micro_steps = 8
    burst = world.burst_spec(groups_per_step=3, policy={"hold_seconds": 0, "supply_fraction": 0}).model_dump(
        mode="json"
    )
    campaign = {"run": world.run, "name": "many", "bursts": 3, "burst": burst}
    name = ids.campaign_id(world.run, "many")
    await world.client.execute_workflow("Campaign", campaign, id=name, task_queue=ids.WORKFLOW_QUEUE)


async def cancelled_in_training(world: FakeWorld) -> None:
    world.micro_step_seconds = 60.0
    burst = await world.start_burst()
    await world.eventually(lambda: world.called("run_micro_step"))
    await burst.cancel()
    await world.until(lambda state: state.burst is None)


async def cancelled_in_rollout(world: FakeWorld) -> None:
    world.harness_seconds = lambda spec: 60.0
    burst = await world.start_burst()
    await world.eventually(lambda: len(world.called("run_harness")) == 4)
    await burst.cancel()
    await world.until(lambda state: state.burst is None and not state.accounts.roster)
    refused = await world.start_burst("wrong", tasks="nowhere")
    await world.eventually(lambda: len(world.called("select_tasks")) == 2)
    await asyncio.wait({asyncio.create_task(refused.describe())})
    await world.until(world.all_serving)


async def elastic(world: FakeWorld) -> None:
    """A cell is offered and trains, another policy decides, an operator freezes and releases, the cell is reclaimed."""
    offer = OfferCell(cell=CellSpec(index=2, engine="paced", slots=8))
    await world.scheduler.execute_update("offer_cell", offer)
    await world.boot(2)
    await world.until(world.all_serving)
    await world.scheduler.execute_update("enter_safe_mode", "a look at the switch")
    await world.scheduler.execute_update("leave_safe_mode", "it is fine")
    policy = {"name": "throughput", "throughput": {"sample_seconds": 0.5, "low_seconds": 0, "settle_seconds": 0}}
    world.harness_seconds = lambda spec: 1.0
    burst = await world.start_burst(steps=3, policy=policy)
    await world.scheduler.execute_update("reclaim_cell", ReclaimCell(cell=2))
    await burst.result()
    await world.until(lambda state: len(state.cells) == 2)


SCENES: tuple[Callable[[FakeWorld], object], ...] = (
    parked_steps,
    roll_overs,
    cancelled_in_training,
    cancelled_in_rollout,
    elastic,
)


async def record(client: Client) -> list[tuple[str, WorkflowHistory]]:
    found: list[tuple[str, WorkflowHistory]] = []
    async with workflow_worker(client):
        for number, scene in enumerate(SCENES):
            with tempfile.TemporaryDirectory() as folder:
                world = FakeWorld(client, f"scene-{number}", Path(folder), (8, 8))
                try:
                    await world.start()
                    await scene(world)  # type: ignore[misc]
                    await asyncio.sleep(1)
                    found += await histories_of(client, world.run)
                finally:
                    await world.close()
                if world.problems:
                    raise RuntimeError(f"{scene.__name__}: {world.problems}")
            print(f"{scene.__name__}: played", file=sys.stderr)
    return found


def without_paths(text: str) -> str:
    """Tracebacks keep the names of their files; where those lie on this machine is nobody's business."""
    return re.sub(r'File \\"[^"\\]*/', r'File \\"', text)


def fits(history: WorkflowHistory, events: "tuple[EventType.ValueType, ...]") -> bool:
    return all(has(history, event) for event in events) and has(history, CUT_OFF) <= (
        CUT_OFF in events or len(events) > 1
    )


def pick(found: list[tuple[str, WorkflowHistory]]) -> dict[str, str]:
    """File name -> JSON: for each wanted kind the shortest history that is not taken yet, the rarest kinds first."""
    fitting = {
        name: [history for type_, history in found if type_ == kind and fits(history, events)]
        for name, (kind, events) in WANTED.items()
    }
    picked: dict[str, str] = {}
    taken: list[WorkflowHistory] = []
    for name in sorted(fitting, key=lambda name: len(fitting[name])):
        free = [history for history in fitting[name] if history not in taken]
        if not free:
            raise RuntimeError(f"no history for {name}")
        shortest = min(free, key=lambda history: len(history.events))
        taken.append(shortest)
        text = without_paths(shortest.to_json())
        if len(text) > LIMIT_BYTES:
            raise RuntimeError(f"{name} has {len(text)} bytes")
        picked[f"{name}.json"] = f'{{"id": "{shortest.workflow_id}", "history": {text}}}\n'
    return picked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", metavar="VERSION")
    release = parser.parse_args().release
    if release:
        path = keep(release, of_today())
        print(f"{path.name}: {path.stat().st_size} bytes")
        return
    with dev_server("limit.historyCount.suggestContinueAsNew=50") as address:
        picked = pick(asyncio.run(_connected(address)))
    shutil.rmtree(TODAY, ignore_errors=True)
    TODAY.mkdir()
    for name, text in picked.items():
        (TODAY / name).write_text(text)
        print(f"{name}: {len(text)} bytes")


async def _connected(address: str) -> list[tuple[str, WorkflowHistory]]:
    return await record(await connect(address))


if __name__ == "__main__":
    main()
