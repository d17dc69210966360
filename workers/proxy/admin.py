"""The control API on the admin port, behind the admin key (routes: `workflows.messages.routing`), and `/metrics`."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from workers.proxy.broker import Broker
from workers.proxy.executions import Executions
from workers.proxy.handoffs import Handoffs
from workers.proxy.metrics import Metrics
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings
from workers.proxy.table import REMEMBERED_LEASES, RouteTable
from workflows.messages.base import Message
from workflows.messages.errors import EngineUnavailable, Fenced, GyreError, InvalidInput
from workflows.messages.routing import (
    CancelRequest,
    CancelResult,
    DoorChange,
    EngineEntry,
    HandoffDone,
    RegisterExecution,
    RerouteRequest,
    RoutingState,
)

M = TypeVar("M", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]


class LostEngine(Message):
    """Body of `/admin/engines/{engine}/lost`."""

    boot_epoch: int


class Admin:
    """What the control API does; every method is idempotent."""

    def __init__(
        self, table: RouteTable, executions: Executions, broker: Broker, handoffs: Handoffs, settings: ProxySettings
    ) -> None:
        self.table, self.executions, self.broker, self.handoffs = table, executions, broker, handoffs
        self._settings = settings
        self._cut: dict[str, list[Segment]] = {}

    async def cancel(self, request: CancelRequest) -> CancelResult:
        """Cut what is outstanding at an engine, and wait, bounded, until it has ended there."""
        record = self.table.of(request.engine, request.boot_epoch)
        await self.table.shut(record)
        segments = list(record.segments.values())
        if request.await_kv_seconds > 0:
            plan = self.table.plan(request.lease)
            expected = {move.execution for move in plan.moves if move.destination} if plan else set()
            expected |= {segment.execution for segment in segments}
            self.handoffs.expect(request.lease, expected, request.await_kv_seconds)
        cut = self._cut.setdefault(request.lease, [])
        while len(self._cut) > REMEMBERED_LEASES:
            del self._cut[next(iter(self._cut))]
        cut += [segment for segment in segments if segment not in cut]
        for segment in segments:
            segment.cut()
        if segments:
            ends = [asyncio.ensure_future(segment.ended.wait()) for segment in segments]
            await asyncio.wait(ends, timeout=self._settings.abort_grace_seconds + 1)
            for end in ends:
                end.cancel()
        if record.unsettled:
            try:
                loads = await record.upstream.loads()
            except EngineUnavailable:
                loads = None
            if loads is not None and loads.running + loads.waiting == 0:
                record.unsettled.clear()
        moved = {segment.call for segment in cut if segment.moved}
        return CancelResult(requests_moved=len(moved), still_running=len(record.segments) + len(record.unsettled))

    async def end_execution(self, name: str) -> None:
        execution = self.executions.close(name)
        if execution is not None:
            await self.broker.close(execution)
        await self.table.forget(name)

    def state(self) -> RoutingState:
        return RoutingState(
            engines=tuple(self.table.state()), waiting=len(self.table.waiters), executions=len(self.executions)
        )


def admin_app(admin: Admin, metrics: Metrics, admin_key: str) -> ASGIApp:
    """The ASGI application of the admin port."""

    async def put_engine(request: Request) -> Response:
        entry = await _read(request, EngineEntry)
        _same("engine", request.path_params["engine"], entry.engine)
        await admin.table.put(entry)
        return JSONResponse({})

    async def door(request: Request) -> Response:
        change = await _read(request, DoorChange)
        _same("engine", request.path_params["engine"], change.engine)
        await admin.table.door(change)
        return JSONResponse({})

    async def lost(request: Request) -> Response:
        await admin.table.lost(request.path_params["engine"], (await _read(request, LostEngine)).boot_epoch)
        return JSONResponse({})

    async def reroute(request: Request) -> Response:
        return _json(await admin.table.reroute(await _read(request, RerouteRequest), admin.executions.in_flight()))

    async def cancel(request: Request) -> Response:
        return _json(await admin.cancel(await _read(request, CancelRequest)))

    async def handoff(request: Request) -> Response:
        done = await _read(request, HandoffDone)
        admin.handoffs.done(done.lease, done.executions)
        return JSONResponse({})

    async def register(request: Request) -> Response:
        admin.executions.register(await _read(request, RegisterExecution))
        return JSONResponse({})

    async def end(request: Request) -> Response:
        await admin.end_execution(request.path_params["execution"])
        return JSONResponse({})

    async def state(request: Request) -> Response:
        return _json(admin.state())

    async def exported(request: Request) -> Response:
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(request: Request) -> Response:
        return JSONResponse({"ready": True})

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), admin_key.encode()):
                return _failure(401, "Unauthorized", "the admin key is needed")
            try:
                return await endpoint(request)
            except Fenced as error:
                return _failure(409, "Fenced", str(error))
            except InvalidInput as error:
                return _failure(422, "InvalidInput", str(error), error.field)
            except GyreError as error:
                return _failure(503, type(error).__name__, str(error))

        return checked

    return Starlette(
        routes=[
            Route("/admin/engines/{engine}", guarded(put_engine), methods=["PUT"]),
            Route("/admin/engines/{engine}/door", guarded(door), methods=["POST"]),
            Route("/admin/engines/{engine}/lost", guarded(lost), methods=["POST"]),
            Route("/admin/reroutes", guarded(reroute), methods=["POST"]),
            Route("/admin/cancels", guarded(cancel), methods=["POST"]),
            Route("/admin/handoffs", guarded(handoff), methods=["POST"]),
            Route("/admin/executions", guarded(register), methods=["POST"]),
            Route("/admin/executions/{execution:path}", guarded(end), methods=["DELETE"]),
            Route("/admin/state", guarded(state), methods=["GET"]),
            Route("/metrics", exported, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ]
    )


async def _read(request: Request, model: type[M]) -> M:
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(first["msg"], field=".".join(str(part) for part in first["loc"]) or None) from None


def _same(field: str, in_path: str, in_body: str) -> None:
    if in_path != in_body:
        raise InvalidInput(f"the path says {in_path!r}, the body {in_body!r}", field=field)


def _json(message: Message) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")


def _failure(status: int, kind: str, message: str, field: str | None = None) -> Response:
    return JSONResponse({"error": kind, "message": message, "field": field}, status_code=status)
