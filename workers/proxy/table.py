"""The route table: engines, their doors and what runs on them, where each execution lives, who waits for room.

Invariants: nothing is placed through a closed door; an older boot epoch changes nothing; every change of engines and
routes is durable before the control API answers. Decisions are in `placement` and `admission`.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from infra.engine import EngineClient
from workers.proxy import rows
from workers.proxy.admission import Held, order
from workers.proxy.metrics import Metrics
from workers.proxy.placement import Demand, Engine, place, rehome
from workers.proxy.recorder import Recorder
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings
from workflows.messages.errors import EngineUnavailable, Fenced, InvalidInput
from workflows.messages.routing import DoorChange, EngineEntry, EngineState, Move, ReroutePlan, RerouteRequest

log = logging.getLogger(__name__)
BACKOFF_LIMIT_SECONDS = 8.0
PUMP_SECONDS = 0.1
REMEMBERED_LEASES = 256


@dataclass(eq=False)
class EngineRecord:
    entry: EngineEntry
    upstream: EngineClient
    door_open: bool = False
    version: int | None = None
    checksum: str | None = None
    segments: dict[str, Segment] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)  # rids given up on before the engine had ended them
    failures: int = 0
    free_at: float = 0.0


@dataclass(eq=False)
class Waiter:
    """A request that waits for room."""

    held: Held
    execution: str
    newest_version: int | None
    reserved_tokens: int
    number: int
    kv_waited: bool
    granted: asyncio.Future[Segment]


class RouteTable:
    """All methods belong to one event loop."""

    def __init__(
        self, settings: ProxySettings, recorder: Recorder, connect: Callable[[str], EngineClient], metrics: Metrics
    ) -> None:
        self._settings, self._recorder, self._connect, self._metrics = settings, recorder, connect, metrics
        self.engines: dict[str, EngineRecord] = {}
        self.routes: dict[str, str] = {}
        self.waiters: list[Waiter] = []
        self._plans: dict[str, ReroutePlan] = {}
        self._pump_task: asyncio.Task[None] | None = None

    # Engines and doors ------------------------------------------------------------------------------------------

    def restore(self, entry: EngineEntry, door_open: bool, version: int | None, checksum: str | None) -> None:
        """An engine as the database knew it when this proxy started."""
        record = EngineRecord(entry, self._connect(entry.url), door_open, version, checksum)
        self.engines[entry.engine] = record

    async def put(self, entry: EngineEntry) -> None:
        """A new engine, or a new boot of one, comes with a closed door; the same entry again changes nothing."""
        known = self.engines.get(entry.engine)
        if known is not None:
            if entry.boot_epoch < known.entry.boot_epoch:
                raise Fenced(f"{entry.engine} is at boot epoch {known.entry.boot_epoch}, not {entry.boot_epoch}")
            if entry == known.entry:
                return
            self._lose(known)
            await known.upstream.close()
        record = EngineRecord(entry, self._connect(entry.url))
        self.engines[entry.engine] = record
        await self._save(record)
        self.pump()

    async def door(self, change: DoorChange) -> None:
        """Open at a version and checksum, or close; closing lets what runs there go on."""
        record = self.of(change.engine, change.boot_epoch)
        if change.open:
            if change.version is None or not change.checksum:
                raise InvalidInput("needed to open a door", field="version" if change.version is None else "checksum")
            record.version, record.checksum = change.version, change.checksum
            record.failures, record.free_at = 0, 0.0
        record.door_open = change.open
        await self._save(record)
        self.pump()

    async def lost(self, engine: str, boot_epoch: int) -> None:
        """The engine died: its requests continue elsewhere at once, its executions find a new home."""
        record = self.of(engine, boot_epoch)
        self._lose(record)
        record.door_open = False
        await self._forget([execution for execution, home in self.routes.items() if home == engine])
        await self._save(record)
        self.pump()

    def of(self, engine: str, boot_epoch: int) -> EngineRecord:
        """The engine in that very boot. Raises InvalidInput if unknown, Fenced if it is another boot."""
        record = self.engines.get(engine)
        if record is None:
            raise InvalidInput(f"no engine {engine!r}", field="engine")
        if record.entry.boot_epoch != boot_epoch:
            raise Fenced(f"{engine} is at boot epoch {record.entry.boot_epoch}, not {boot_epoch}")
        return record

    def failed(self, engine: str, boot_epoch: int) -> None:
        """An engine let a request down: it rests, longer each time, unless its door opens anew."""
        record = self.engines.get(engine)
        if record is None or record.entry.boot_epoch != boot_epoch:
            return
        pause = min(BACKOFF_LIMIT_SECONDS, self._settings.engine_backoff_seconds * 2**record.failures)
        record.failures += 1
        record.free_at = time.monotonic() + pause

    def did_well(self, engine: str) -> None:
        record = self.engines.get(engine)
        if record is not None:
            record.failures = 0

    def state(self) -> list[EngineState]:
        homes = self._executions()
        return [
            EngineState(
                entry=record.entry,
                door_open=record.door_open,
                version=record.version,
                checksum=record.checksum,
                running=len(record.segments),
                executions=homes.get(name, 0),
            )
            for name, record in self.engines.items()
        ]

    # Leaving ----------------------------------------------------------------------------------------------------

    async def reroute(self, request: RerouteRequest, in_flight: dict[str, int | None]) -> ReroutePlan:
        """Close the door and switch the routes. `in_flight`: execution -> newest version among its requests."""
        if request.lease in self._plans:
            return self._plans[request.lease]
        record = self.of(request.engine, request.boot_epoch)
        record.door_open = False
        moving = {e: in_flight.get(e) for e, home in sorted(self.routes.items()) if home == request.engine}
        homes = rehome(self._views(), request.engine, moving)
        moves = [Move(execution=e, destination=home, in_flight=e in in_flight) for e, home in homes.items()]
        plan = ReroutePlan(lease=request.lease, moves=tuple(moves))
        self._plans[request.lease] = plan
        while len(self._plans) > REMEMBERED_LEASES:
            del self._plans[next(iter(self._plans))]
        for execution, home in homes.items():
            self._route(execution, home)
        self._recorder.post(rows.put_routes(homes))
        await self._save(record)
        self.pump()
        return plan

    async def shut(self, record: EngineRecord) -> None:
        """Close a door, durably."""
        if record.door_open:
            record.door_open = False
            await self._save(record)

    def plan(self, lease: str) -> ReroutePlan | None:
        return self._plans.get(lease)

    # Room -------------------------------------------------------------------------------------------------------

    async def acquire(self, waiter: Waiter, hold_seconds: float) -> Segment:
        """Wait for room, then a segment that occupies it. Raises EngineUnavailable after `hold_seconds`."""
        self.waiters.append(waiter)
        self.pump()
        self._metrics.waiting.set(len(self.waiters))
        try:
            async with asyncio.timeout(hold_seconds):
                return await waiter.granted
        except BaseException as error:
            if waiter.granted.done() and not waiter.granted.cancelled():  # granted at the very moment it gave up
                self.release(waiter.granted.result())
            if isinstance(error, TimeoutError):
                raise EngineUnavailable(f"no engine could take the request within {hold_seconds:.0f} s") from None
            raise
        finally:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
            self._metrics.waiting.set(len(self.waiters))

    def release(self, segment: Segment) -> None:
        """A segment has ended, as far as the proxy is concerned."""
        segment.ended.set()
        record = self.engines.get(segment.engine)
        if record is not None and record.segments.pop(segment.rid, None) is not None:
            if not segment.stopped and record.entry.boot_epoch == segment.boot_epoch:
                record.unsettled.add(segment.rid)
            self.pump()

    def pump(self) -> None:
        """Let waiting requests go where there is room; comes back by itself while any wait."""
        now = time.monotonic()
        by_call = {waiter.held.call: waiter for waiter in self.waiters}
        views = self._views() if by_call else []
        for held in order([w.held for w in self.waiters], now, self._settings.oldest_first_seconds):
            waiter = by_call[held.call]
            home = self.routes.get(waiter.execution)
            demand = Demand(home, waiter.newest_version, waiter.reserved_tokens, held.since)
            chosen = place(views, demand, now, self._settings.sticky_wait_seconds)
            if chosen is None or waiter.granted.done():
                continue
            self.waiters.remove(waiter)
            if chosen != home:
                self._route(waiter.execution, chosen)
                self._recorder.post(rows.put_routes({waiter.execution: chosen}))
            waiter.granted.set_result(self._occupy(waiter, self.engines[chosen]))
            views = self._views()
        if self.waiters and (self._pump_task is None or self._pump_task.done()):
            self._pump_task = asyncio.create_task(self._keep_pumping())

    async def _keep_pumping(self) -> None:
        while self.waiters:
            await asyncio.sleep(PUMP_SECONDS)
            self.pump()

    def _occupy(self, waiter: Waiter, record: EngineRecord) -> Segment:
        entry = record.entry
        segment = Segment(
            call=waiter.held.call,
            number=waiter.number,
            execution=waiter.execution,
            engine=entry.engine,
            cell=entry.cell,
            boot_epoch=entry.boot_epoch,
            version=record.version or 0,
            checksum=record.checksum or "",
            reserved_tokens=waiter.reserved_tokens,
            kv_waited=waiter.kv_waited,
        )
        record.segments[segment.rid] = segment
        return segment

    async def close(self) -> None:
        if self._pump_task is not None:
            self._pump_task.cancel()
        await asyncio.gather(*(record.upstream.close() for record in self.engines.values()))

    # Routes -----------------------------------------------------------------------------------------------------

    async def forget(self, execution: str) -> None:
        """An execution is over: its place is free."""
        await self._forget([execution])
        self.pump()

    async def _forget(self, executions: Iterable[str]) -> None:
        gone = dict.fromkeys(executions, "")
        for execution in gone:
            self._route(execution, "")
        if gone:
            await self._recorder.write(rows.put_routes(gone))

    def _route(self, execution: str, engine: str) -> None:
        if engine:
            self.routes[execution] = engine
        else:
            self.routes.pop(execution, None)

    def _lose(self, record: EngineRecord) -> None:
        for segment in list(record.segments.values()):
            segment.lost.set()
        record.unsettled.clear()

    def _executions(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for _, group in itertools.groupby(sorted(self.routes.values())):
            names = list(group)
            counts[names[0]] = len(names)
        return counts

    def _views(self) -> list[Engine]:
        homes = self._executions()
        return [
            Engine(
                name=name,
                cell=record.entry.cell,
                standalone=record.entry.standalone,
                door_open=record.door_open,
                version=record.version,
                slots=record.entry.slots,
                kv_tokens=record.entry.kv_tokens,
                running=len(record.segments),
                reserved_tokens=sum(segment.reserved_tokens for segment in record.segments.values()),
                executions=homes.get(name, 0),
                free_at=record.free_at,
            )
            for name, record in self.engines.items()
        ]

    async def _save(self, record: EngineRecord) -> None:
        entry = record.entry
        row = {
            "engine": entry.engine,
            "cell": entry.cell,
            "boot_epoch": entry.boot_epoch,
            "url": entry.url,
            "slots": entry.slots,
            "kv_tokens": entry.kv_tokens,
            "standalone": entry.standalone,
            "version": record.version,
            "checksum": record.checksum,
            "door": "open" if record.door_open else "closed",
        }
        await self._recorder.write(rows.put_engine(row))
