"""Runs a call to its end, on as many engines as it takes.

Invariants: a segment starts exactly where the last one's accepted tokens end; what an engine sent is accepted only
after it was checked; a fault of an engine is never shown to the harness while another one can go on.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from infra.engine import EngineClient, GenerateChunk, GenerateRequest
from infra.tokenizer import ChatTokenizer
from workers.proxy import rows
from workers.proxy.admission import Held
from workers.proxy.call import LiveCall
from workers.proxy.continuation import Piece, check_piece
from workers.proxy.handoffs import Handoffs
from workers.proxy.metrics import Metrics
from workers.proxy.recorder import Recorder
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings
from workers.proxy.table import RouteTable, Waiter
from workflows.messages.errors import EngineUnavailable, InvalidRequest

log = logging.getLogger(__name__)
ABORT_EVERY_SECONDS = 0.25
CONTEXT_EDGE_TOKENS = 8
"""An engine may end an answer this much before the context is full."""


@dataclass(frozen=True)
class Dispatcher:
    """`vocabulary`: ids the model may sample, also those that a padded embedding adds to the tokenizer's."""

    run: str
    context_tokens: int
    vocabulary: int
    settings: ProxySettings
    tokenizer: ChatTokenizer
    table: RouteTable
    recorder: Recorder
    handoffs: Handoffs
    metrics: Metrics
    _aborting: set[asyncio.Task[None]] = field(default_factory=set)  # the loop itself keeps only weak references

    async def answer(self, call: LiveCall) -> str:
        """stop or length, with the answer in `call`.

        Raises EngineUnavailable when patience is over, InvalidRequest if an engine refuses the request itself.
        """
        number, faults, failing_since, left = 0, 0, None, None
        while call.so_far.remaining > 0:
            had = len(call.so_far.ids)
            segment = await self._room(call, number)
            if left is not None and segment.engine != left:
                self.metrics.reroutes.inc()
            ended, why = await self._segment(call, segment)
            number, left = number + 1, segment.engine
            if ended in ("stop", "length"):
                return ended
            if len(call.so_far.ids) > had:
                faults, failing_since = 0, None
            if ended == "moved":
                continue
            faults, failing_since = faults + 1, failing_since or time.monotonic()
            log.warning("call %s: %s at %s: %s", call.call, ended, segment.engine, why)
            self.table.failed(segment.engine, segment.boot_epoch)
            patience = self.settings.retry_seconds - (time.monotonic() - failing_since)
            if faults >= self.settings.max_faults or patience <= 0:
                raise EngineUnavailable(f"{faults} engine faults in a row, the last: {why}")
        return "length"

    async def _room(self, call: LiveCall, number: int) -> Segment:
        arrived = time.monotonic()
        kv_waited = await self.handoffs.wait(call.execution)
        waiter = Waiter(
            held=Held(call.call, call.completed_calls, call.prompt.shared, time.monotonic()),
            execution=call.execution,
            newest_version=call.so_far.newest_version,
            reserved_tokens=len(call.prompt.ids) + call.so_far.budget,
            number=number,
            kv_waited=kv_waited,
            granted=asyncio.get_running_loop().create_future(),
        )
        segment = await self.table.acquire(waiter, self.settings.hold_seconds)
        call.waited_seconds += time.monotonic() - arrived
        self.metrics.waited.observe(time.monotonic() - arrived)
        return segment

    async def _segment(self, call: LiveCall, segment: Segment) -> tuple[str, str]:
        """How one segment ended (stop, length, moved, or a fault) and why."""
        record = self.table.engines.get(segment.engine)
        if record is None or record.entry.boot_epoch != segment.boot_epoch or not record.door_open:
            segment.stopped = True  # never sent: the door closed in the meantime
            self.table.release(segment)
            return "moved", "the door closed"
        request = self._request(call, segment)
        self._open_row(call, segment, request)
        had = len(call.so_far.ids)
        ended, why, cached = "died", "", [0]
        try:
            ended = await self._read(call, segment, record.upstream, request, cached)
            if ended in ("stop", "length"):
                self.table.did_well(segment.engine)
            elif segment.cut.is_set() or segment.lost.is_set() or not record.door_open:
                why, ended = ended, "moved"
            else:
                why = {"abort": "it aborted the request unasked", "short": "it ended before the budget"}[ended]
        except EngineUnavailable as error:
            why = str(error)
            if segment.lost.is_set() or segment.cut.is_set():
                ended = "moved"
        except InvalidRequest:
            ended, segment.stopped = "refused", True
            raise
        finally:
            if not segment.stopped:
                self._abort_soon(record.upstream, segment.rid)
            segment.moved = ended == "moved"
            self.table.release(segment)
            written = "abort" if ended in ("moved", "short") else ended
            self.metrics.segments.labels(written).inc()
            self.recorder.post(
                rows.close_segment(
                    call.call,
                    segment.number,
                    ended=written,
                    output_tokens=len(call.so_far.ids) - had,
                    cached_tokens=cached[0],
                )
            )
        return ended, why

    async def _read(
        self, call: LiveCall, segment: Segment, engine: EngineClient, request: GenerateRequest, cached: list[int]
    ) -> str:
        """Take in one stream. Returns stop, length, abort or short (length, but not where it should be)."""
        start, stream = len(call.so_far.ids), engine.generate(request)
        watch = Watch(self, segment, engine)
        try:
            while True:
                chunk = await watch.next(stream)
                if chunk is None:
                    return "stop" if call.stopped else "abort"
                segment.stopped = chunk.finish is not None
                cached[0] = chunk.cached_tokens
                if call.stopped:  # only waiting for the engine to let go
                    if segment.stopped:
                        return "stop"
                    continue
                self._take(call, chunk, start)
                if call.stopped:
                    if segment.stopped:
                        return "stop"
                    segment.cut.set()
                elif chunk.finish == "length" and call.so_far.remaining > 0:
                    used = len(call.prompt.ids) + len(call.so_far.ids)
                    return "length" if used >= self.context_tokens - CONTEXT_EDGE_TOKENS else "short"
                elif chunk.finish is not None:
                    return chunk.finish
        except EngineUnavailable:
            if call.stopped:
                return "stop"
            raise
        finally:
            await watch.close(stream)
            if start == 0:
                call.cached_tokens = cached[0]

    def _take(self, call: LiveCall, chunk: GenerateChunk, start: int) -> None:
        piece = Piece(chunk.ids, chunk.logprobs, (_version(chunk.weight_version),) * len(chunk.ids))
        check_piece(piece, call.so_far.remaining, self.vocabulary)
        call.so_far.accept(piece, only=call.push(piece.ids))
        if chunk.spans is not None:
            call.so_far.restamp(start, [_version(s.version) for s in chunk.spans for _ in range(s.end - s.start)])

    def _request(self, call: LiveCall, segment: Segment) -> GenerateRequest:
        sampling = call.sampling
        return GenerateRequest(
            rid=segment.rid,
            input_ids=call.so_far.next_input,
            max_new_tokens=call.so_far.remaining,
            cache_key=f"{self.run}|{segment.version}|{segment.checksum}",
            session_id=call.execution,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=self.tokenizer.end_of_turn_ids,
            sampling_seed=segment_seed(self.run, call.execution, call.seed, call.sequence, segment.number),
        )

    def _open_row(self, call: LiveCall, segment: Segment, request: GenerateRequest) -> None:
        if segment.number == 0:
            self.metrics.added.observe(max(0.0, time.time() - call.started_at - call.waited_seconds))
        row = {
            "call": call.call,
            "segment": segment.number,
            "rid": segment.rid,
            "engine": segment.engine,
            "cell": segment.cell,
            "boot_epoch": segment.boot_epoch,
            "version": segment.version,
            "seed": request.sampling_seed,
            "started_at": segment.started_at,
            "prompt_tokens": len(request.input_ids),
            "kv_waited": segment.kv_waited,
        }
        self.recorder.post(rows.open_segment(row))

    def _abort_soon(self, engine: EngineClient, rid: str) -> None:
        task = asyncio.ensure_future(_abort(engine, rid))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)


class Watch:
    """Waits for the next chunk of a stream, and for every reason to stop waiting."""

    def __init__(self, dispatcher: Dispatcher, segment: Segment, engine: EngineClient) -> None:
        self._settings, self._table = dispatcher.settings, dispatcher.table
        self._segment, self._engine = segment, engine
        self._cut = asyncio.ensure_future(segment.cut.wait())
        self._lost = asyncio.ensure_future(segment.lost.wait())
        self._cut_at: float | None = None
        self._asked_at = float("-inf")
        self._first = True

    async def next(self, stream: AsyncIterator[GenerateChunk]) -> GenerateChunk | None:
        """The next chunk; None if the request was cut and did not end in time. Raises EngineUnavailable."""
        step = asyncio.ensure_future(anext(stream))
        since = time.monotonic()
        try:
            while True:
                if self._lost.done():
                    raise EngineUnavailable("the engine was lost")
                # Asked for even while chunks keep coming: a busy stream must not drown the cut.
                if self._cut.done() and not await self._aborting():
                    return None
                if step.done():
                    self._first = False
                    return step.result()
                silence = time.monotonic() - since
                if not self._cut.done() and self._silent(silence):
                    raise EngineUnavailable(f"silent for {silence:.0f} s")
                signals = {signal for signal in (self._cut, self._lost) if not signal.done()}
                await asyncio.wait({step, *signals}, timeout=ABORT_EVERY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not step.done():
                step.cancel()
                await asyncio.wait({step})
            elif not step.cancelled():
                step.exception()  # seen, also where it no longer matters

    async def _aborting(self) -> bool:
        """Ask the engine to end the request, every so often; False once it has had its time."""
        now = time.monotonic()
        self._cut_at = self._cut_at or now
        if now - self._cut_at > self._settings.abort_grace_seconds:
            return False
        if now - self._asked_at >= ABORT_EVERY_SECONDS:
            self._asked_at = now
            await _abort(self._engine, self._segment.rid)
        return True

    def _silent(self, seconds: float) -> bool:
        limit = self._settings.first_token_seconds if self._first else self._settings.next_token_seconds
        record = self._table.engines.get(self._segment.engine)
        # Behind a closed door silence is a pause, and whoever closed it bounds it.
        return seconds > limit and record is not None and record.door_open

    async def close(self, stream: AsyncIterator[GenerateChunk]) -> None:
        self._cut.cancel()
        self._lost.cancel()
        await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]


async def _abort(engine: EngineClient, rid: str) -> None:
    try:
        await engine.abort(rid)
    except (EngineUnavailable, InvalidRequest) as error:
        log.info("abort of %s: %s", rid, error)


def _version(label: str) -> int:
    """An engine's weight label as a version. Raises EngineUnavailable for weights nobody published."""
    if not label.isdecimal():
        raise EngineUnavailable(f"its weights are labelled {label!r}, which is no version")
    return int(label)


def segment_seed(run: str, execution: str, seed: int, sequence: int, segment: int) -> int:
    """31-bit sampling seed of one segment, a pure function of what identifies it."""
    digest = hashlib.sha256(f"{run}|{execution}|{seed}|{sequence}|{segment}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
