"""Puts the proxy together from a run's folder, and serves its two ports."""

import asyncio
import contextlib
import gc
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from sqlalchemy import Engine, select
from starlette.types import ASGIApp

from infra.engine import EngineClient
from infra.records import schema
from infra.records.database import open_database
from infra.settings.run import Secrets, load_run
from infra.tokenizer import ChatTokenizer
from workers.component import when_told_to_stop
from workers.proxy import rows, segment_rows
from workers.proxy.aborts import Aborts
from workers.proxy.admin import Admin, admin_app
from workers.proxy.broker import Broker
from workers.proxy.dispatch import Dispatcher
from workers.proxy.executions import Executions
from workers.proxy.handoffs import Handoffs
from workers.proxy.metrics import Metrics
from workers.proxy.public import public_app
from workers.proxy.recorder import Recorder
from workers.proxy.settings import ProxySettings
from workers.proxy.table import RouteTable
from workflows.messages.burst import Sampling
from workflows.messages.routing import EngineEntry, RegisterExecution

log = logging.getLogger(__name__)
GRACE_SECONDS = 2


@dataclass(frozen=True)
class Proxy:
    """A whole proxy. `close` when it is no longer served."""

    public: ASGIApp
    admin: ASGIApp
    control: Admin
    executions: Executions
    table: RouteTable
    recorder: Recorder
    metrics: Metrics
    aborts: Aborts

    async def close(self) -> None:
        """End every running call, write what is queued, hang up on the engines."""
        for execution in self.executions.all():
            await self.control.broker.close(execution)
        await self.aborts.close()
        await self.table.close()
        await asyncio.to_thread(self.recorder.close)


async def build_proxy(
    *,
    run: str,
    database: Engine,
    model_folder: Path,
    context_tokens: int,
    admin_key: str,
    settings: ProxySettings,
    connect: Callable[[str], EngineClient] | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> Proxy:
    """A proxy that goes on where the last one on this database stood: engines, routes and open executions.

    `connect` makes the client of an engine from its URL, where the usual one will not do; `tokenizer`: that of the
    model folder, where it is known already.
    """
    tokenizer = tokenizer or ChatTokenizer(model_folder)
    vocabulary = max(tokenizer.vocab_size, _embedded_ids(model_folder))
    metrics, recorder, handoffs, executions = Metrics(), Recorder(database), Handoffs(), Executions()

    def usual(url: str) -> EngineClient:
        silence = max(settings.first_token_seconds, settings.next_token_seconds) * 2  # the dispatcher's is the limit
        return EngineClient(url, vocabulary=vocabulary, admin_key=admin_key, silence_seconds=silence)

    table, aborts = RouteTable(settings, recorder, connect or usual, metrics), Aborts(settings)
    orphans = await asyncio.to_thread(_restore, database, run, table, executions)
    await recorder.write(rows.fail_orphans())
    for engine, boot_epoch, rid in orphans:
        record = table.engines.get(engine)
        if record is not None and record.entry.boot_epoch == boot_epoch:
            aborts.end_orphan(record, rid)
    dispatcher = Dispatcher(
        run, context_tokens, vocabulary, settings, tokenizer, table, recorder, handoffs, metrics, aborts
    )
    broker = Broker(
        database=database,
        tokenizer=tokenizer,
        context_tokens=context_tokens,
        settings=settings,
        recorder=recorder,
        dispatcher=dispatcher,
        metrics=metrics,
    )
    control = Admin(table, executions, broker, handoffs, settings)
    return Proxy(
        public=public_app(broker, executions, settings, metrics, model_folder.name),
        admin=admin_app(control, metrics, admin_key),
        control=control,
        executions=executions,
        table=table,
        recorder=recorder,
        metrics=metrics,
        aborts=aborts,
    )


def _embedded_ids(model_folder: Path) -> int:
    """Size of the model's embedding; 0 if the folder does not say."""
    file = model_folder / "config.json"
    return int(json.loads(file.read_text()).get("vocab_size") or 0) if file.is_file() else 0


def _restore(database: Engine, run: str, table: RouteTable, executions: Executions) -> list[tuple[str, int, str]]:
    """What is on record, into the tables; returns (engine, boot epoch, request id) of what the last life left."""
    with database.connect() as connection:
        for row in connection.execute(select(schema.engines)):
            entry = EngineEntry(
                engine=row.engine,
                cell=row.cell,
                boot_epoch=row.boot_epoch,
                url=row.url,
                slots=row.slots,
                kv_tokens=row.kv_tokens,
                standalone=row.standalone,
            )
            table.restore(entry, row.door == "open", row.version, row.checksum)
        live = schema.executions
        for row in connection.execute(select(live).where(live.c.state == "open", live.c.run == run)):
            executions.register(
                RegisterExecution(
                    execution=row.execution,
                    run=row.run,
                    token_sha256=row.token_sha256,
                    attempt=row.attempt,
                    seed=row.seed,
                    sampling=Sampling.model_validate(row.sampling),
                    call_limit=row.call_limit,
                    harness=row.harness,
                )
            )
        known = {execution.name for execution in executions.all()}
        for row in connection.execute(select(schema.routes)):
            if row.engine in table.engines and row.execution in known:
                table.routes[row.execution] = row.engine
        table.restore_plans(segment_rows.plans(connection))
        return segment_rows.open_rids(connection)


class _Server(uvicorn.Server):
    """Signals belong to the process, not to one of its two servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(run_dir: Path) -> None:
    """Serve a run until TERM or INT."""
    manifest, secrets = load_run(run_dir), Secrets.of(run_dir)
    proxy = await build_proxy(
        run=manifest.run,
        database=open_database(manifest.database_url, create=True),
        model_folder=manifest.model_folder,
        context_tokens=manifest.fleet.context_tokens,
        admin_key=secrets.admin_key,
        settings=ProxySettings.of(run_dir),
    )
    gc.collect()
    gc.freeze()
    servers = [
        _Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                proxy_headers=False,
                host=manifest.host,
                port=port,
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        for app, port in ((proxy.public, manifest.proxy_port), (proxy.admin, manifest.proxy_admin_port))
    ]

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    when_told_to_stop(stop)
    log.info("proxy of run %s on ports %d and %d", manifest.run, manifest.proxy_port, manifest.proxy_admin_port)
    try:
        await asyncio.gather(*(server.serve() for server in servers))
    finally:
        await proxy.close()
