"""The route table: engines, their doors and what runs on them, where each execution lives, who waits for room.

Invariants: nothing is placed through a closed door; an older boot epoch changes nothing; every change of engines and
routes is durable before the control API answers. Decisions are in `placement` and `admission`.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from infra.engine import EngineClient
from workers.proxy import rows, segment_rows
from workers.proxy.admission import Held, order, overdue
from workers.proxy.engine_record import EngineRecord
from workers.proxy.metrics import Metrics
from workers.proxy.placement import Demand, Engine, kept_free, place, rehome
from workers.proxy.recorder import Recorder
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings
from workflows.messages.errors import EngineUnavailable, Fenced, InvalidInput
from workflows.messages.routing import DoorChange, EngineEntry, EngineState, Move, ReroutePlan, RerouteRequest

log = logging.getLogger(__name__)
REMEMBERED_LEASES = segment_rows.PLANS_KEPT
RETIRE_SECONDS = 10.0


@dataclass(eq=False)
class Waiter:
    """A request that waits for room. `since`: when this wait began; `held.since` counts earlier ones as well."""

    held: Held
    execution: str
    newest_version: int | None
    reserved_tokens: int
    constrained: bool
    number: int
    kv_waited: bool
    since: float
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
        self._retiring: set[asyncio.Task[None]] = set()

    # Engines and doors ------------------------------------------------------------------------------------------

    def restore(self, entry: EngineEntry, door_open: bool, version: int | None, checksum: str | None) -> None:
        """An engine as the database knew it when this proxy started."""
        record = EngineRecord(entry, self._connect(entry.url), door_open, version, checksum)
        self.engines[entry.engine] = record

    def restore_plans(self, plans: Iterable[ReroutePlan]) -> None:
        """The reroute plans that an earlier life of the proxy has made, oldest first."""
        self._plans |= {plan.lease: plan for plan in plans}

    async def put(self, entry: EngineEntry) -> None:
        """A new engine, or a new boot of one, comes with a closed door; the same entry again changes nothing."""
        known = self.engines.get(entry.engine)
        if known is not None:
            if entry.boot_epoch < known.entry.boot_epoch:
                raise Fenced(f"{entry.engine} is at boot epoch {known.entry.boot_epoch}, not {entry.boot_epoch}")
            if entry == known.entry:
                return
            self._lose(known)
            known.retired = True
            task = asyncio.ensure_future(_retire(known))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        record = EngineRecord(entry, self._connect(entry.url))
        self.engines[entry.engine] = record
        await self._save(record)
        self.pump()

    async def door(self, change: DoorChange) -> None:
        """Open at a version and checksum, or close; closing lets what runs there go on, at `version` if one comes."""
        record = self.of(change.engine, change.boot_epoch)
        if change.open:
            if change.version is None or not change.checksum:
                raise InvalidInput("needed to open a door", field="version" if change.version is None else "checksum")
            record.version, record.checksum, record.coming = change.version, change.checksum, None
            record.failures, record.free_at, record.opened_at = 0, 0.0, _now()
        else:
            record.coming = change.version
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

    def failed(self, engine: str, boot_epoch: int, rest_seconds: float | None = None) -> None:
        """An engine let a request down: it rests, as long as it asks for or longer each time, unless its door opens
        anew."""
        record = self.engines.get(engine)
        if record is None or record.entry.boot_epoch != boot_epoch:
            return
        settings = self._settings
        pause = min(settings.backoff_limit_seconds, settings.engine_backoff_seconds * 2 ** min(record.failures, 16))
        if rest_seconds is not None:
            pause = min(max(pause, rest_seconds), settings.busy_limit_seconds)
        record.failures += 1
        record.free_at = max(record.free_at, _now() + pause)

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
        self._recorder.post(segment_rows.put_plan(plan, request.engine))
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

    async def can_constrain(self) -> bool:
        """Whether some engine can follow a grammar. One that cannot be asked counts as able."""
        unknown = [record for record in self.engines.values() if record.grammars is None]
        await asyncio.gather(*(_ask_grammars(record) for record in unknown))
        return not self.engines or any(record.grammars is not False for record in self.engines.values())

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
        if not self.waiters:
            return
        now, settings, kept = _now(), self._settings, set[str]()
        by_call = {waiter.held.call: waiter for waiter in self.waiters}
        views = self._views()
        for held in order([w.held for w in self.waiters], now, settings.oldest_first_seconds):
            waiter = by_call[held.call]
            if waiter.granted.done():
                continue
            home = self.routes.get(waiter.execution)
            demand = Demand(home, waiter.newest_version, waiter.reserved_tokens, waiter.since, waiter.constrained)
            free = [view for view in views if view.name not in kept]
            chosen = place(free, demand, now, settings.sticky_wait_seconds)
            if chosen is None:
                kept_for_it = (
                    kept_free(free, demand, now) if overdue(held, now, settings.oldest_first_seconds) else None
                )
                kept |= {kept_for_it} if kept_for_it else set()
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
            await asyncio.sleep(self._settings.pump_seconds)
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
        for task in (*self._retiring, *([self._pump_task] if self._pump_task is not None else [])):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
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
            segment.lose()
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
                grammars=record.grammars is not False,
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


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _ask_grammars(record: EngineRecord) -> None:
    try:
        record.grammars = await record.upstream.constrains()
    except EngineUnavailable as error:
        log.info("%s cannot say whether it follows grammars: %s", record.entry.engine, error)


async def _retire(record: EngineRecord) -> None:
    """Hang up on an engine whose place another boot has taken, once its last reader has left."""
    ends = [asyncio.ensure_future(segment.ended.wait()) for segment in record.segments.values()]
    if ends:
        await asyncio.wait(ends, timeout=RETIRE_SECONDS)
        for end in ends:
            end.cancel()
    await record.upstream.close()
