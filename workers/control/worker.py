"""What the control worker hosts, and the start of a run's long-lived workflows."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pydantic
from sqlalchemy import Engine
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion, WorkflowIDConflictPolicy
from temporalio.worker import Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.executions import ExecutionActivities
from activities.ledger import LedgerActivities
from activities.routing import RoutingActivities
from activities.tasks import TaskActivities
from activities.telemetry import TelemetryActivities
from activities.trajectories.admission import AdmissionActivities
from activities.trajectories.packing import PackingActivities
from infra.code import workflow_code
from infra.objects import ObjectStore
from infra.records.batches import committed_weights
from infra.records.boots import next_boot
from infra.records.cores import core_on_record
from infra.records.database import open_database
from infra.routing.client import RoutingClient
from infra.settings.run import RunManifest, Secrets, load_run
from infra.temporal.client import connect
from workers.component import when_told_to_stop
from workers.control import metrics
from workers.control.lost_books import recorded_books
from workers.control.rebuilt import GuardedRunner
from workers.registration import STEP_GRACE, activities_of, interceptors, running
from workers.supervisor import hints
from workflows.accounts import AccountsState
from workflows.batch import TrainingBatch
from workflows.books import SchedulerState
from workflows.burst import Burst
from workflows.campaign import Campaign
from workflows.cell import Cell, CellState
from workflows.cell_table import CellEntry
from workflows.commands import PLAIN, show_resume_command
from workflows.execution import AgentExecution
from workflows.messages import ids
from workflows.messages.scheduling import RunSpec, Weights
from workflows.parking import StepAborted, StepSkipped
from workflows.scheduler import Scheduler
from workflows.steps import Queue
from workflows.transition import RoleTransition

_log = logging.getLogger(__name__)

WORKFLOWS: list[type] = [AgentExecution, Burst, Campaign, Cell, RoleTransition, Scheduler, TrainingBatch]
FAILURES: Sequence[type[BaseException]] = (pydantic.ValidationError, StepSkipped, StepAborted)
"""Exceptions that fail a workflow; any other keeps its task pending: a bug of ours until a fix is
deployed, a state of other code (StateUnreadable) until a worker with that code is there."""

DEPLOYMENT = "gyre"
"""What Temporal calls the control workers, beside the build id of each."""

_LOOK_SECONDS = 0.5


def workflow_runner() -> SandboxedWorkflowRunner:
    """The sandbox; our own pure packages and pydantic pass through it instead of being imported per workflow."""
    passed = (
        "workflows.messages",
        "workflows.policy",
        "workflows.steps",
        "workflows.commands",
        "pydantic",
        "pydantic_core",
        "annotated_types",
    )
    return GuardedRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*passed))


def workflow_worker(client: Client, *, max_cached_workflows: int = 500, resume_command: str = PLAIN) -> Worker:
    """Hosts every workflow. The low sticky time-out lets another worker take over quickly after a kill.

    `resume_command`: what a blocked workflow shows, see `workflows.commands`. The build id is shown, never routed by
    (docs/decisions/0102-deploying-workflow-code.md).
    """
    show_resume_command(resume_command)
    build = WorkerDeploymentVersion(DEPLOYMENT, workflow_code())
    return Worker(
        client,
        task_queue=ids.WORKFLOW_QUEUE,
        workflows=WORKFLOWS,
        workflow_runner=workflow_runner(),
        workflow_failure_exception_types=FAILURES,
        max_cached_workflows=max_cached_workflows,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        graceful_shutdown_timeout=STEP_GRACE,
        deployment_config=WorkerDeploymentConfig(build, use_worker_versioning=False),
    )


def control_activities(
    manifest: RunManifest, client: Client, engine: Engine, router: RoutingClient
) -> list[Callable[..., Any]]:
    """Everything of the control queue, with its clients injected."""
    return activities_of(
        Queue.CONTROL,
        TaskActivities(manifest),
        ExecutionActivities(client, engine),
        LedgerActivities(engine),
        AdmissionActivities(engine),
        PackingActivities(engine, ObjectStore(manifest.object_store_url)),
        RoutingActivities(router),
        TelemetryActivities(engine),
    )


async def serve(run_dir: Path) -> None:
    """Serve until TERM or INT."""
    manifest = load_run(run_dir)
    engine = open_database(manifest.database_url)
    epoch = next_boot(engine, "control")
    client = await connect(manifest)
    stop = asyncio.Event()
    when_told_to_stop(stop.set)
    async with RoutingClient(manifest.proxy_admin_url, Secrets.of(manifest.folder).admin_key) as router:
        activities = Worker(
            client,
            task_queue=ids.control_queue(manifest.run),
            activities=control_activities(manifest, client, engine, router),
            interceptors=interceptors(),
            max_concurrent_activities=32,
            graceful_shutdown_timeout=STEP_GRACE,
        )
        command = hints.resume_command(manifest, "{workflow_id}", anywhere=True)
        async with running(workflow_worker(client, resume_command=command), activities):
            _log.info("control worker, boot %d, serves run %s", epoch, manifest.run)
            begin = asyncio.create_task(begin_run(manifest, client, engine))
            begin.add_done_callback(_log_failure)
            with metrics.serving(engine, manifest.host, manifest.metrics_port):
                await stop.wait()
            begin.cancel()


async def begin_run(manifest: RunManifest, client: Client, engine: Engine) -> None:
    """Start Scheduler and Cells as soon as the core has recorded the weights the run begins with."""
    while (found := await asyncio.to_thread(committed_weights, engine)) is None:
        await asyncio.sleep(_LOOK_SECONDS)
    weights, checkpoint = found
    core = await asyncio.to_thread(core_on_record, engine)
    accounts, positions = await asyncio.to_thread(recorded_books, engine, manifest.checkpoints, checkpoint)
    await start_run(manifest, client, weights, accounts, positions, core)


async def start_run(
    manifest: RunManifest,
    client: Client,
    weights: Weights,
    accounts: AccountsState,
    positions: dict[str, int],
    core: tuple[int, int] = (0, 0),
) -> None:
    """Start the run's long-lived workflows; those that run already go on untouched, with the books they have.

    `core`: the cell, and the number of the hand-over that made it so.
    """
    fleet = manifest.fleet
    cells = tuple(cell for cell in fleet.cells if cell.index not in manifest.gone)
    spec = RunSpec(
        run=fleet.run,
        cells=cells,
        weights=weights,
        kv_handoff=fleet.kv_handoff,
        bounds=fleet.bounds,
        max_cells=fleet.max_cells,
        harness_slots=fleet.harness_slots if fleet.evaluator_slots else 0,
        evaluator_slots=fleet.evaluator_slots,
        reboots=fleet.reboots,
    )
    books = SchedulerState(
        spec=spec,
        weights=weights,
        cells=tuple(CellEntry(spec=cell) for cell in cells),
        core=core[0],
        change=core[1],
        accounts=accounts,
        positions=positions,
        reclaimed=manifest.gone,
    )
    await client.start_workflow(
        Scheduler.run,
        books,
        id=ids.scheduler_id(fleet.run),
        task_queue=ids.WORKFLOW_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"run {fleet.run}: {len(cells)} cells",
    )
    for cell in cells:
        await client.start_workflow(
            Cell.run,
            CellState(run=fleet.run, spec=cell, weights=weights, reboots=fleet.reboots),
            id=ids.cell_workflow_id(fleet.run, cell.index),
            task_queue=ids.WORKFLOW_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary="core" if cell.index == core[0] else f"satellite {cell.index}",
        )


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("the run's workflows could not be started", exc_info=task.exception())
