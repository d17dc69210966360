"""One boot of a cell: engine and actor come up together, the cell's queue is served, and all of it ends together.

When the engine or the actor dies, or a role change is stuck for good (`reboot_cell`), the worker ends too, and the
supervisor starts the next boot: a cell is always one consistent boot, and whatever an older one had in hand is fenced
by its boot epoch.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sqlalchemy import Engine
from temporalio.client import Client
from temporalio.worker import Worker

from activities.cell import Cell
from activities.kv_handoff import KvActivities
from activities.memory import MemoryActivities
from activities.succession import SuccessionActivities
from activities.training import TrainingActivities
from activities.weights import WeightsActivities
from infra.actor import ActorClient, ActorLaunch, ActorProcess
from infra.engine import EngineClient
from infra.engine.linker_client import LinkerClient
from infra.records.batches import committed_weights, record_base
from infra.records.boots import next_boot
from infra.records.cores import core_on_record
from infra.records.database import open_database
from infra.routing.client import RoutingClient
from infra.settings.run import RunManifest, Secrets, load_run
from infra.temporal.client import connect
from infra.weights.architecture import Architecture
from workers.cell.announcement import announce
from workers.cell.engine import engine_server
from workers.cell.proof import PacedProof, SglangProof
from workers.cell.stream import BatchStream
from workers.component import CELL_GRACE_SECONDS, end_within, when_told_to_stop
from workers.registration import BEAT_THROTTLE, STEP_GRACE, activities_of, interceptors
from workflows.messages import ids
from workflows.messages.errors import GyreError
from workflows.messages.fleet import CellSpec, CellWorkerUp
from workflows.messages.scheduling import Weights
from workflows.messages.training import LayDown, RestoreBase, RestoreCheckpoint
from workflows.steps import Queue

_log = logging.getLogger(__name__)

ACTOR_SECONDS = 1800.0


class CellLost(GyreError):
    """The engine or the actor of this boot has died, its cell was offered anew or is to reboot: the boot is over."""


async def serve(run_dir: Path, index: int) -> None:
    """Serve one boot of cell `index` until TERM, INT or the end of the boot (CellLost)."""
    manifest = load_run(run_dir)
    spec = manifest.fleet.cells[index]
    records = open_database(manifest.database_url)
    epoch = next_boot(records, ids.engine_id(index))
    stop = asyncio.Event()
    when_told_to_stop(stop.set, grace_seconds=CELL_GRACE_SECONDS)
    async with AsyncExitStack() as processes, AsyncExitStack() as held:
        server = engine_server(manifest, spec, epoch)
        processes.push_async_callback(server.stop)
        server.start()
        actor = ActorProcess(ActorLaunch.of(manifest, index, epoch), Secrets.of(manifest.folder).admin_key)
        processes.push_async_callback(actor.stop)
        cell, client = await held.enter_async_context(_cell(manifest, spec, epoch, records))
        deaths = [asyncio.create_task(server.died()), asyncio.create_task(_actor_up(actor, cell, records))]
        ready = asyncio.create_task(server.ready(cell.engine))
        await _first(stop, ready, deaths[0])
        await _first(stop, deaths[1])
        deaths[1] = asyncio.create_task(actor.wait())
        if stop.is_set():
            return
        await held.enter_async_context(_steps(cell, client))
        announced = asyncio.create_task(announce(client, cell.run, _up(manifest, cell)))
        asked = asyncio.create_task(cell.over.wait())
        for task in (announced, asked):
            held.callback(task.cancel)
        # A thread that never comes back, at a disk that hangs, must not keep the next boot from coming.
        held.callback(end_within, CELL_GRACE_SECONDS)
        _log.info("cell %d, boot %d, is up", index, epoch)
        await _first(stop, *deaths, announced, asked)
        # At once, beside the steps' own end: what those still wait for goes with this boot either way.
        ending = asyncio.gather(server.stop(), actor.stop(), cell.stream.close())
        processes.push_async_callback(asyncio.wait_for, ending, None)
        if not stop.is_set():
            await _say_lost(manifest, cell)
            state = f"engine alive {server.alive}, actor alive {actor.is_alive}, offered anew {announced.done()}"
            state = "reboots, as it was asked to" if asked.done() else state
            raise CellLost(f"cell {index}, boot {epoch}: {state}")


async def _first(stop: asyncio.Event, *tasks: asyncio.Task) -> None:
    """Wait for the first task to end (raising what it raised) or for the stop."""
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            task.result()
    finally:
        stopped.cancel()


@asynccontextmanager
async def _cell(
    manifest: RunManifest, spec: CellSpec, epoch: int, records: Engine
) -> AsyncIterator[tuple[Cell, Client]]:
    key = Secrets.of(manifest.folder).admin_key
    vocabulary = Architecture.from_folder(manifest.model_folder).vocab_size
    paced = spec.engine == "paced"
    client = await connect(manifest)
    async with AsyncExitStack() as held:
        engine = await held.enter_async_context(
            EngineClient(manifest.engine_url(spec.index), vocabulary=vocabulary, admin_key=key)
        )
        linker = None
        if manifest.fleet.kv_handoff and not paced:
            linker = LinkerClient(manifest.linker_url(spec.index), key)
            held.push_async_callback(linker.close)
        actor = ActorClient(manifest.actor_url(spec.index), key, timeout_seconds=ACTOR_SECONDS)
        held.push_async_callback(actor.close)
        stream = BatchStream(client)
        held.push_async_callback(stream.close)
        cell = Cell(
            run=manifest.run,
            index=spec.index,
            boot_epoch=epoch,
            engine=engine,
            linker=linker,
            actor=actor,
            stream=stream,
            proof=PacedProof() if paced else SglangProof(),
            records=records,
            published=manifest.published_weights(spec.index),
            checkpoints=manifest.checkpoints,
            base_model=manifest.model_folder,
            # Where peers are is looked up anew: some may have joined the run since this one booted.
            peer_actor=lambda index: ActorClient(
                load_run(manifest.folder).actor_url(index), key, timeout_seconds=ACTOR_SECONDS
            ),
            peer_linker=lambda index: LinkerClient(load_run(manifest.folder).linker_url(index), key),
        )
        yield cell, client


async def _actor_up(actor: ActorProcess, cell: Cell, records: Engine) -> None:
    """Start the actor and give it weights: the core its last committed ones, a satellite the base model's for now."""
    await actor.start()
    fence = {"boot_epoch": cell.boot_epoch, "lease_epoch": 0}
    found = await asyncio.to_thread(committed_weights, records)
    core, _ = await asyncio.to_thread(core_on_record, records)
    leads = cell.index == core
    if not leads:
        await cell.actor.lay_down(LayDown(**fence))  # cell 0 begins as the core, but need not be it any more
    if leads and found is not None and found[0].version > 0:
        weights = found[0]
        await cell.actor.restore_checkpoint(
            RestoreCheckpoint(**fence, version=weights.version, checksum=weights.checksum, as_core=True)
        )
        return
    expected = found[0].checksum if found is not None and found[0].version == 0 else None
    restored = await cell.actor.restore_base(RestoreBase(**fence, version=0, checksum=expected, as_core=leads))
    if leads:
        await asyncio.to_thread(record_base, records, Weights(version=0, checksum=restored.checksum))


@asynccontextmanager
async def _steps(cell: Cell, client: Client) -> AsyncIterator[None]:
    """Serve the cell's own queue: one boot of one cell, so nothing older can be taken by mistake."""
    training = TrainingActivities(cell, client)
    if isinstance(cell.stream, BatchStream):
        cell.stream.attach(training.run_micro_step)
    hosts = (KvActivities(cell), MemoryActivities(cell), WeightsActivities(cell), training, SuccessionActivities(cell))
    worker = Worker(
        client,
        task_queue=ids.cell_queue(cell.run, cell.index, cell.boot_epoch),
        activities=activities_of(Queue.CELL, *hosts),
        interceptors=interceptors(),
        max_concurrent_activities=8,
        max_heartbeat_throttle_interval=BEAT_THROTTLE,
        graceful_shutdown_timeout=STEP_GRACE,
    )
    async with worker:
        yield


def _up(manifest: RunManifest, cell: Cell) -> CellWorkerUp:
    return CellWorkerUp(
        cell=cell.index,
        boot_epoch=cell.boot_epoch,
        queue=ids.cell_queue(cell.run, cell.index, cell.boot_epoch),
        engine_url=manifest.engine_url(cell.index),
        actor_url=manifest.actor_url(cell.index),
    )


async def _say_lost(manifest: RunManifest, cell: Cell) -> None:
    """Let the proxy move this engine's requests now, without waiting for them to fail one by one."""
    async with RoutingClient(manifest.proxy_admin_url, Secrets.of(manifest.folder).admin_key) as router:
        try:
            await router.engine_lost(ids.engine_id(cell.index), cell.boot_epoch)
        except GyreError as error:
            _log.warning("the proxy does not know that cell %d is lost: %s", cell.index, error)
