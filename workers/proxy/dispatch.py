"""Runs a call to its end, on as many engines as it takes.

Invariants: a segment starts exactly where the last one's accepted tokens end; what an engine sent is accepted only
after it was checked; a fault of an engine is never shown to the harness while another one can go on; an answer whose
state cannot be carried to another engine starts anew if nobody has heard any of it, and else ends in a clear error.
"""

import asyncio
import hashlib
import logging
import time
from dataclasses import dataclass

from infra.engine import EngineRefused, GenerateChunk, GenerateRequest
from infra.tokenizer import ChatTokenizer
from workers.proxy import segment_rows
from workers.proxy.aborts import Aborts
from workers.proxy.admission import Held
from workers.proxy.call import LiveCall, ModelRequest
from workers.proxy.continuation import Piece, carries_over, check_piece, versions_of
from workers.proxy.engine_record import EngineRecord
from workers.proxy.handoffs import Handoffs
from workers.proxy.metrics import Metrics
from workers.proxy.recorder import Recorder
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings
from workers.proxy.table import RouteTable, Waiter
from workers.proxy.watch import Watch
from workflows.messages.errors import EngineUnavailable, InvalidRequest

log = logging.getLogger(__name__)
CONTEXT_EDGE_TOKENS = 8
"""An engine may end an answer this much before the context is full."""
_ENDS = ("stop", "length")
_FAULTS = ("died", "abort", "short")
_WHY = {"abort": "it aborted the request unasked", "short": "it ended before the budget"}


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
    aborts: Aborts

    async def check(self, request: ModelRequest) -> None:
        """Raises InvalidRequest for what no engine of this fleet can do, before anything is recorded."""
        if request.grammar is not None and not await self.table.can_constrain():
            raise InvalidRequest("this fleet's engines cannot constrain their output", field=request.grammar.kind)

    async def answer(self, call: LiveCall) -> str:
        """stop or length, with the answer in `call`.

        Raises EngineUnavailable when patience is over or the answer cannot go on, InvalidRequest if an engine refuses
        the request itself.
        """
        clock = asyncio.get_running_loop().time
        number, faults, failing_since, left = 0, 0, None, None
        while call.so_far.remaining > 0:
            had = len(call.so_far.ids)
            segment = await self._room(call, number)
            if left is not None and segment.engine != left:
                self.metrics.reroutes.inc()
            ended, why = await self._segment(call, segment)
            number, left = number + 1, segment.engine
            if ended in _ENDS:
                return ended
            if call.so_far.ids and call.so_far.ids[-1] in self.tokenizer.end_of_turn_ids:
                return "stop"  # it had said all, and broke off before it could say so
            if len(call.so_far.ids) > had:
                faults, failing_since = 0, None
            if ended != "moved":
                faults, failing_since = faults + 1, failing_since or clock()
                log.warning("call %s: %s at %s: %s", call.call, ended, segment.engine, why)
                patience = self.settings.retry_seconds - (clock() - failing_since)
                if faults >= self.settings.max_faults or patience <= 0:
                    raise EngineUnavailable(f"{faults} engine faults in a row, the last: {why}")
            if call.so_far.ids and not carries_over(call.sampling, call.request.grammar is not None):
                self._begin_again(call, why)
        return "length"

    def _begin_again(self, call: LiveCall, why: str) -> None:
        """The engine's state is lost with the engine: from the start, if nobody has heard anything yet."""
        said = len(call.so_far.ids)
        if call.has_shown:
            raise EngineUnavailable(
                f"interrupted after {said} tokens ({why or 'its engine left'}), and its grammar or penalties cannot be "
                "carried to another engine: ask again"
            )
        log.info("call %s: %d tokens are dropped, it begins again", call.call, said)
        call.begin_again()
        self.recorder.post(segment_rows.discard_segments(call.call))

    async def _room(self, call: LiveCall, number: int) -> Segment:
        clock = asyncio.get_running_loop().time
        arrived = clock()
        kv_waited = await self.handoffs.wait(call.execution)
        waiter = Waiter(
            held=Held(call.call, call.completed_calls, call.prompt.shared, arrived - call.waited_seconds),
            execution=call.execution,
            newest_version=call.so_far.newest_version,
            reserved_tokens=len(call.prompt.ids) + call.so_far.budget,
            constrained=call.request.grammar is not None,
            number=number,
            kv_waited=kv_waited,
            since=clock(),
            granted=asyncio.get_running_loop().create_future(),
        )
        segment = await self.table.acquire(waiter, self.settings.hold_seconds)
        call.waited_seconds += clock() - arrived
        self.metrics.waited.observe(clock() - arrived)
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
        had, ended, why, rest = len(call.so_far.ids), "abort", "", None
        try:
            ended = await self._read(call, segment, record, request)
            why = _WHY.get(ended, "")
        except EngineUnavailable as error:
            ended, why = "died", str(error)
            if isinstance(error, EngineRefused):
                segment.stopped, rest = True, error.retry_after_seconds  # it never began
        except InvalidRequest:
            ended, segment.stopped = "refused", True
            raise
        finally:
            if ended in _FAULTS and (segment.is_cut or segment.is_lost or (ended != "died" and not record.door_open)):
                ended = "moved"
            segment.moved = ended == "moved"
            # Brought to newer weights in place, it may hold KV of both: an older engine must not find that.
            newer = max(record.version or 0, record.coming or 0)
            if newer > segment.version:
                call.so_far.floor = max(newer, call.so_far.floor or 0)
            self.table.release(segment)
            self.aborts.end(record, segment)
            written = "abort" if ended in ("moved", "short") else ended
            self.metrics.segments.labels(written).inc()
            self.recorder.post(
                segment_rows.close_segment(
                    call.call,
                    segment.number,
                    ended=written,
                    output_tokens=len(call.so_far.ids) - had,
                    cached_tokens=segment.cached_tokens,
                    mixed_kv_tokens=segment.mixed_kv_tokens,
                    spoken=(segment.first_token_at, segment.last_token_at),
                )
            )
        if ended in _ENDS:
            self.table.did_well(segment.engine)
        elif ended != "moved":
            self.table.failed(segment.engine, segment.boot_epoch, rest)
        return ended, why

    async def _read(self, call: LiveCall, segment: Segment, record: EngineRecord, request: GenerateRequest) -> str:
        """Take in one stream. Returns stop, length, abort or short (length, but not where it should be)."""
        start, stream, watch = len(call.so_far.ids), record.upstream.generate(request), None
        try:
            async with asyncio.timeout(None) as limit:
                watch = Watch(self.settings, record, segment, self.aborts, limit)
                async for chunk in stream:
                    watch.heard()
                    segment.heard = True
                    segment.stopped = chunk.finish is not None
                    segment.cached_tokens = chunk.cached_tokens
                    self._take(call, segment, record, chunk, start)
                    if call.stopped:  # the engine is told so when the segment is left
                        return "stop"
                    if chunk.finish == "length" and call.so_far.remaining > 0:
                        used = len(call.prompt.ids) + len(call.so_far.ids)
                        return "length" if used >= self.context_tokens - CONTEXT_EDGE_TOKENS else "short"
                    if chunk.finish is not None:
                        return chunk.finish
        except TimeoutError:
            if watch is not None and watch.why:
                raise EngineUnavailable(watch.why) from None
        finally:
            if watch is not None:
                watch.close()
            await stream.aclose()
            segment.mixed_kv_tokens = call.so_far.newer_than(segment.version, start)
            if start == 0:
                call.cached_tokens = segment.cached_tokens
        return "abort"

    def _take(self, call: LiveCall, segment: Segment, record: EngineRecord, chunk: GenerateChunk, start: int) -> None:
        version = self._version(segment, record, chunk.weight_version)
        before = call.so_far.versions[-1] if len(call.so_far.ids) > start else segment.version
        if version < before:
            raise EngineUnavailable(f"it went back from version {before} to {version}")
        piece = Piece(chunk.ids, chunk.logprobs, versions_of(len(chunk.ids), version, before))
        check_piece(piece, call.so_far.remaining, self.vocabulary)
        if piece.ids:
            segment.spoke()
        spans = None
        if chunk.spans is not None and (chunk.finish is not None or len(chunk.spans) > 1):
            known = {span.version: self._version(segment, record, span.version) for span in chunk.spans if span.end}
            spans = [known[span.version] for span in chunk.spans for _ in range(span.end - span.start)]
            if spans != sorted(spans):
                raise EngineUnavailable(f"it went back from a version to an older one: {chunk.spans}")
        call.so_far.accept(piece, only=call.push(piece.ids))
        if spans is not None:
            call.so_far.restamp(start, spans)

    def _version(self, segment: Segment, record: EngineRecord, label: str) -> int:
        """An engine's weight label as a version. Raises EngineUnavailable for weights nobody published there."""
        if not label.isdecimal():
            raise EngineUnavailable(f"its weights are labelled {label!r}, which is no version")
        version = int(label)
        if not record.may_say(segment, version):
            raise EngineUnavailable(f"it speaks with version {version}, and was opened at {segment.version}")
        return version

    def _request(self, call: LiveCall, segment: Segment) -> GenerateRequest:
        sampling, grammar = call.sampling, call.request.grammar
        least = min(call.request.least_tokens - len(call.so_far.ids), call.so_far.remaining)
        return GenerateRequest(
            rid=segment.rid,
            input_ids=call.so_far.next_input,
            max_new_tokens=call.so_far.remaining,
            min_new_tokens=max(0, least),
            cache_key=f"{self.run}|{segment.version}|{segment.checksum}",
            session_id=call.execution,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            stop_token_ids=self.tokenizer.end_of_turn_ids,
            sampling_seed=segment_seed(self.run, call.execution, call.seed, call.sequence, segment.number),
            extra_sampling={} if grammar is None else {grammar.kind: grammar.text},
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
        self.recorder.post(segment_rows.open_segment(row))


def segment_seed(run: str, execution: str, seed: int, sequence: int, segment: int) -> int:
    """31-bit sampling seed of one segment, a pure function of what identifies it."""
    digest = hashlib.sha256(f"{run}|{execution}|{seed}|{sequence}|{segment}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
