"""A proxy and paced engines on loopback, in one event loop, for the length of a rehearsal."""

import asyncio
import contextlib
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import uvicorn
from sqlalchemy import Engine

from infra.records.database import open_database
from infra.routing import RoutingClient
from workers.cell.rollout.paced.engine import PacedEngine
from workers.cell.rollout.paced.faults import Fault, FaultKind
from workers.cell.rollout.paced.routes import paced_app
from workers.cell.rollout.paced.settings import PacedSettings
from workers.proxy.server import Proxy, build_proxy
from workers.proxy.settings import ProxySettings
from workers.rehearsal.model import CONTEXT_TOKENS
from workflows.messages.errors import Transient
from workflows.messages.routing import CancelRequest, DoorChange, EngineEntry, RerouteRequest

RUN = "rehearsal"
SLOTS = 8
_KEY = "the-admin-key-of-a-rehearsal"
_START_SECONDS = 30.0
_DRAIN_TRIES = 20
_ANSWERS = 1000
"""More than a rehearsal has."""


class _Served:
    """An ASGI application on a free port of loopback."""

    def __init__(self, app: Any) -> None:
        # With the protocol named, asyncio switches Nagle's algorithm off, as it does for servers it binds itself.
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        async with asyncio.timeout(_START_SECONDS):
            while not self._server.started:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()


class Stage:
    """`engines` paced engines named cell-0, cell-1, ... that say what `script` says, and a proxy with its records.

    `model`: a folder made by `write_model`. `context_tokens`: what fits the policy, whatever a harness believes.
    Everything is written below `folder`.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        script: str,
        *,
        engines: int = 1,
        tokens_per_second: float = 200,
        context_tokens: int = CONTEXT_TOKENS,
    ) -> None:
        self.folder, self._model, self._context = folder, model, context_tokens
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "script.json").write_text(script)
        settings = PacedSettings(
            model=str(model),
            version="1",
            script=str(folder / "script.json"),
            tokens_per_second=tokens_per_second,
            prefill_tokens_per_second=1e9,
            slots=SLOTS,
            kv_tokens=4 * CONTEXT_TOKENS,
            context=context_tokens + 8,
        )
        self.engines = [PacedEngine(settings) for _ in range(engines)]
        self.database: Engine = open_database(f"sqlite:///{folder / 'records.db'}", create=True)
        self._served: list[_Served] = []
        self._leases = 0

    async def __aenter__(self) -> "Stage":
        self.proxy: Proxy = await build_proxy(
            run=RUN,
            database=self.database,
            model_folder=self._model,
            context_tokens=self._context,
            admin_key=_KEY,
            settings=ProxySettings(sticky_wait_seconds=0.1),
        )
        self._public = _Served(self.proxy.public)
        self._served = [_Served(paced_app(engine)) for engine in self.engines]
        for served in (self._public, *self._served):
            await served.open()
        self.control = RoutingClient("http://proxy", _KEY, transport=httpx2.ASGITransport(app=self.proxy.admin))
        for cell, served in enumerate(self._served):
            await self.control.put_engine(
                EngineEntry(
                    engine=f"cell-{cell}",
                    cell=cell,
                    boot_epoch=1,
                    url=served.url,
                    slots=SLOTS,
                    kv_tokens=self.engines[cell].settings.kv_tokens,
                )
            )
            await self.open_door(cell)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.control.close()
        await self._public.close()
        await self.proxy.close()
        for served in self._served:
            await served.close()
        self.database.dispose()

    @property
    def url(self) -> str:
        return self._public.url

    async def open_door(self, cell: int) -> None:
        change = DoorChange(engine=f"cell-{cell}", boot_epoch=1, open=True, version=1, checksum="0" * 64)
        await self.control.change_door(change)

    def hold_answers(self, tokens: int) -> None:
        """Every answer that begins from now on stops after that many tokens, until it is moved; a shorter one ends."""
        for engine in self.engines:
            engine.faults.arm(Fault(kind=FaultKind.HANG, after_tokens=tokens, times=_ANSWERS))

    def hold_no_more(self) -> None:
        """Answers that begin from now on go on to their end."""
        for engine in self.engines:
            engine.faults.clear()

    def held(self) -> list[int]:
        """Cells with an answer that is held, and of which the proxy has heard."""
        return [
            cell
            for cell, engine in enumerate(self.engines)
            for segments in [self.proxy.table.engines[f"cell-{cell}"].segments]
            if any(
                answer.fault_is(FaultKind.HANG) and answer.rid in segments and segments[answer.rid].heard
                for answer in engine.running
            )
        ]

    async def drain(self, cell: int) -> int:
        """Send an engine's requests elsewhere, in mid-answer, as a cell that leaves does; how many were moved.

        Raises Transient if they do not end there.
        """
        self._leases += 1
        name, lease = f"cell-{cell}", f"drain-{self._leases}"
        await self.control.reroute(RerouteRequest(engine=name, boot_epoch=1, lease=lease))
        moved = 0
        for _ in range(_DRAIN_TRIES):
            result = await self.control.cancel(CancelRequest(engine=name, boot_epoch=1, lease=lease))
            moved = max(moved, result.requests_moved)
            if not result.still_running:
                return moved
        raise Transient(f"requests are still running at {name}")
