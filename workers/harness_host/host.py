"""The harness host: workspaces, harness processes, scoring and processing of one run.

Two Temporal workers: one for short steps, one for the hours-long watchers, so that these never crowd out the others.
Harness processes belong to runners of their own and outlive this process.
"""

import asyncio
import contextlib
import logging
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from activities.evaluation import EvaluationActivities
from activities.harness import HarnessActivities, HarnessHost
from activities.slots import SlotActivities
from activities.trajectories.processing import ProcessingActivities
from infra.objects import ObjectStore
from infra.processes.isolation import OPEN, Isolation, isolation_here
from infra.processes.launch import Runners
from infra.records.boots import next_boot
from infra.records.database import open_database
from infra.records.executions import ExecutionRecords
from infra.routing import RoutingClient
from infra.settings.run import RunManifest, Secrets, load_run
from infra.temporal import connect
from workers.component import when_told_to_stop
from workers.harness_host.orphans import OrphanSweep
from workers.registration import STEP_GRACE, activities_of, interceptors, running
from workflows.messages import ids
from workflows.messages.errors import HarnessUnusable
from workflows.steps import Queue

SHORT_STEPS = 8
"""Workspaces prepared, graded or processed at once."""

_log = logging.getLogger(__name__)


async def serve(run_dir: Path) -> None:
    """Serve the run until SIGTERM or SIGINT. Harnesses that run then live on."""
    manifest = load_run(run_dir)
    stop = asyncio.Event()
    when_told_to_stop(stop.set)
    isolation = isolation_for(manifest)
    engine = open_database(manifest.database_url, create=True)
    client = await connect(manifest)
    async with RoutingClient(manifest.proxy_admin_url, Secrets.of(run_dir).admin_key) as proxy:
        host = HarnessHost(
            workspaces=manifest.workspaces,
            harness_root=Path(manifest.root) / "var" / "harness",
            proxy_url=manifest.proxy_url,
            records=ExecutionRecords(engine),
            runners=Runners(Path(manifest.root)),
            proxy=proxy,
            isolation=isolation,
            hidden=(manifest.folder,),
            context_tokens=manifest.fleet.context_tokens,
            keep_workspaces=manifest.fleet.keep_workspaces,
        )
        fleet = manifest.fleet
        slots = SlotActivities(harness=fleet.harness_slots, evaluator=fleet.evaluator_slots or None)
        harness = HarnessActivities(host, slots.harness)
        walls = isolation if fleet.isolate_gradings else OPEN
        evaluation = EvaluationActivities(
            host.records,
            host.workspaces,
            host.runners,
            gate=slots.evaluator,
            isolation=walls,
            hidden=host.hidden,
            may_use_network=fleet.gradings_may_use_network,
        )
        processing = ProcessingActivities(engine, ObjectStore(manifest.object_store_url), proxy)
        epoch = next_boot(engine, "harness-host")
        async with both_workers(client, manifest, harness, evaluation, processing, slots):
            _log.info("harness host of run %s, boot %d, serves", manifest.run, epoch)
            sweep = asyncio.create_task(OrphanSweep(client, host, harness).run())
            await stop.wait()
            sweep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweep
    engine.dispose()


def isolation_for(manifest: RunManifest) -> Isolation:
    """What the fleet asks for and this machine allows. Raises HarnessUnusable if it is required and does not hold."""
    if manifest.fleet.isolation == "off":
        return OPEN
    here = isolation_here()
    log = _log.info if here.network else _log.warning
    log("isolation: %s%s", here.words, f" ({here.reason})" if here.reason else "")
    if manifest.fleet.isolation == "required" and not here.network:
        raise HarnessUnusable(f"the fleet requires isolation, and here {here.words}: {here.reason}")
    return here


@contextlib.asynccontextmanager
async def both_workers(
    client: Client,
    manifest: RunManifest,
    harness: HarnessActivities,
    evaluation: EvaluationActivities,
    processing: ProcessingActivities,
    slots: SlotActivities,
):
    """Both workers of the host, running. What waits at a gate keeps its place here, so there is room for all of it."""
    shared = manifest.fleet.harness_slots + manifest.fleet.evaluator_slots
    short = Worker(
        client,
        task_queue=ids.harness_queue(manifest.run),
        activities=activities_of(Queue.HARNESS, harness, evaluation, processing, slots),
        max_concurrent_activities=SHORT_STEPS + (shared if manifest.fleet.evaluator_slots else 0),
        interceptors=interceptors(),
        graceful_shutdown_timeout=STEP_GRACE,
    )
    watch = Worker(
        client,
        task_queue=ids.watch_queue(manifest.run),
        activities=activities_of(Queue.WATCH, harness),
        max_concurrent_activities=shared,
        interceptors=interceptors(),
        graceful_shutdown_timeout=timedelta(seconds=0),
    )
    async with running(short, watch):
        yield short, watch
