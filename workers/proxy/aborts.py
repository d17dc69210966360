"""Ends requests at engines that nobody reads any more: one abort for each, and the certainty that it worked.

An engine answers 200 to an abort whether or not it knew the request, and real ones ignore a second abort of the same
request; so one is sent, and another only when the engine is seen to still run the request after a while. A request
that was given up on before its engine had ended it stays in the record's `unsettled` until the engine has let go.
"""

import asyncio
import logging
from collections.abc import Coroutine

from workers.proxy.engine_record import EngineRecord
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings
from workflows.messages.errors import EngineUnavailable, InvalidRequest

log = logging.getLogger(__name__)
CLOSING_SECONDS = 1.0


class Aborts:
    """All methods belong to one event loop."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references
        self._unsent: set[str] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def end(self, record: EngineRecord, segment: Segment) -> None:
        """Have the engine end this request; once, however often it is asked for."""
        if not segment.aborted and not segment.stopped:
            segment.aborted = True
            self._unsent.add(segment.rid)
            self._spawn(self._until_ended(record, segment))

    def end_orphan(self, record: EngineRecord, rid: str) -> None:
        """Have the engine end a request of an earlier life of this proxy."""
        record.unsettled.add(rid)
        self._spawn(self._settled(record, rid, delivered=False, known=False))

    async def close(self) -> None:
        """Send what has not been sent yet, within a moment; wait for nothing else."""
        clock = asyncio.get_running_loop().time
        until = clock() + CLOSING_SECONDS
        while self._unsent and clock() < until:
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_ended(self, record: EngineRecord, segment: Segment) -> None:
        """While the request's stream is read, its end is seen there; afterwards the engine is asked."""
        delivered = await self._send(record, segment.rid)
        self._unsent.discard(segment.rid)
        wait = self._settings.abort_again_seconds
        while not segment.ended.is_set():
            try:
                async with asyncio.timeout(wait):
                    await segment.ended.wait()
            except TimeoutError:
                if not segment.ended.is_set():
                    delivered = await self._send(record, segment.rid) or delivered
        if not segment.stopped:
            await self._settled(record, segment.rid, delivered=delivered, known=segment.heard)

    async def _settled(self, record: EngineRecord, rid: str, *, delivered: bool, known: bool) -> None:
        """Nobody reads its stream any more. An abort that reached an engine which `known`-ly ran the request is enough;
        else it may have been overtaken by it, and is sent again if the engine is seen, twice in a row, to run more than
        is read. Bounded: what is left is shown as still running until the engine is seen idle or boots anew."""
        doubts = 0
        for _ in range(self._settings.abort_attempts):
            if not delivered or (doubts >= 2 and not known):
                delivered, doubts = await self._send(record, rid), 0
            await asyncio.sleep(self._settings.abort_again_seconds)
            if record.retired or rid not in record.unsettled:
                return
            try:
                loads = await record.upstream.loads()
            except EngineUnavailable:
                continue
            if loads.running + loads.waiting <= len(record.segments):
                record.unsettled.discard(rid)
                return
            doubts += 1

    async def _send(self, record: EngineRecord, rid: str) -> bool:
        if record.retired:
            return True
        try:
            await record.upstream.abort(rid)
        except (EngineUnavailable, InvalidRequest) as error:
            log.info("abort of %s: %s", rid, error)
            return False
        return True
