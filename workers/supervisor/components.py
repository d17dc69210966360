"""Which processes make up a local stack, and how each shows that it works."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx2
from sqlalchemy import Engine
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from infra.records.boots import latest_boot
from infra.settings.run import RunManifest
from infra.temporal.client import has_poller
from infra.temporal.server import server_command
from workers.component import CELL_GRACE_SECONDS, GRACE_SECONDS
from workflows.messages.ids import cell_queue, control_queue, engine_id, harness_queue, scheduler_id

TEMPORAL = "temporal"

SERVER_STAGE, SERVICE_STAGE, CELL_STAGE, HARNESS_STAGE = range(4)
"""Harnesses start last and end first: one that lives on while engines go away would meet errors."""

STOPPED_TOGETHER = ((HARNESS_STAGE,), (CELL_STAGE, SERVICE_STAGE), (SERVER_STAGE,))
"""Groups of stages in the order of their end. The others take leave of the Temporal server, which goes last."""


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """What a readiness probe may ask. `started_at` is the start of the process, seconds since the epoch."""

    client: Client
    records: Engine
    http: httpx2.AsyncClient
    started_at: float


Probe = Callable[[ProbeContext], Awaitable[bool]]


async def _always(_: ProbeContext) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """One process of the stack. Lower stages start first; `STOPPED_TOGETHER` says when they stop."""

    name: str
    argv: tuple[str, ...]
    ready: Probe = _always
    stage: int = SERVICE_STAGE
    grace_seconds: float = GRACE_SECONDS
    """From TERM to KILL."""


def fleet_components(manifest: RunManifest) -> list[ComponentSpec]:
    """The components of a fleet, in order of start; without the Temporal server when the user brings one."""
    run, folder = manifest.run, ("--run-dir", manifest.run_dir)
    specs: list[ComponentSpec] = []
    if manifest.fleet.temporal == "dev":
        specs.append(temporal_server(manifest))
    specs += [
        ComponentSpec("control", _module("workers.control", *folder), _schedules(run)),
        ComponentSpec("proxy", _module("workers.proxy", *folder), _answers(f"{manifest.proxy_admin_url}/metrics")),
    ]
    specs += [cell_worker(manifest, cell.index) for cell in manifest.fleet.cells if cell.index not in manifest.gone]
    harness_host = _module("workers.harness_host", *folder)
    specs.append(ComponentSpec("harness-host", harness_host, _polls(harness_queue(run)), stage=HARNESS_STAGE))
    return specs


def cell_worker(manifest: RunManifest, index: int) -> ComponentSpec:
    """The worker of one cell."""
    return ComponentSpec(
        engine_id(index),
        _module("workers.cell", "--run-dir", manifest.run_dir, "--cell", str(index)),
        _cell_is_up(manifest.run, index),
        stage=CELL_STAGE,
        grace_seconds=CELL_GRACE_SECONDS,
    )


def temporal_server(manifest: RunManifest) -> ComponentSpec:
    """The development server; everything else starts after it and stops before it."""

    async def answers(context: ProbeContext) -> bool:
        try:
            return await context.client.service_client.check_health()
        except RPCError:
            return False

    return ComponentSpec(TEMPORAL, tuple(server_command(manifest)), answers, stage=SERVER_STAGE)


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def _polls(queue: str) -> Probe:
    async def probe(context: ProbeContext) -> bool:
        try:
            return await has_poller(context.client, queue, since=context.started_at)
        except RPCError:
            return False

    return probe


def _schedules(run: str) -> Probe:
    """The control worker polls, and the run's Scheduler, which it starts once the core is up, can take a burst."""
    polls = _polls(control_queue(run))

    async def probe(context: ProbeContext) -> bool:
        if not await polls(context):
            return False
        try:
            description = await context.client.get_workflow_handle(scheduler_id(run)).describe()
        except RPCError:
            return False
        return description.status is WorkflowExecutionStatus.RUNNING

    return probe


def _answers(url: str) -> Probe:
    async def probe(context: ProbeContext) -> bool:
        try:
            return (await context.http.get(url)).status_code < 500
        except httpx2.TransportError:
            return False

    return probe


def _cell_is_up(run: str, cell: int) -> Probe:
    """A cell worker polls the queue of its newest boot."""

    async def probe(context: ProbeContext) -> bool:
        epoch = latest_boot(context.records, engine_id(cell))
        if epoch is None:
            return False
        return await _polls(cell_queue(run, cell, epoch))(context)

    return probe
