"""From a harness' request to a recorded answer: admits, finds the exact prompt, runs the call, records it.

Invariants: a call's row is durable before anyone hears its end; an answer counts as received only when a client was
there to the last byte; the same request sent twice is sampled once; nothing is recorded for a request that is refused.
"""

import asyncio
import logging
import time
import uuid
from typing import Any

from sqlalchemy import Engine, Row, select

from infra.records import schema
from infra.records.calls import RecordedCall, calls_of
from infra.records.tokens import unpack_logprobs
from infra.tokenizer import ChatTokenizer
from workers.proxy import rows
from workers.proxy.answer import Answer, Answers
from workers.proxy.budget import output_budget
from workers.proxy.call import CallError, LiveCall, ModelRequest
from workers.proxy.continuation import Continuation
from workers.proxy.dispatch import Dispatcher
from workers.proxy.executions import LiveExecution
from workers.proxy.history import History, Prompt
from workers.proxy.metrics import Metrics
from workers.proxy.recorder import Recorder
from workers.proxy.settings import ProxySettings
from workflows.messages.errors import EngineUnavailable, InvalidRequest

log = logging.getLogger(__name__)
_ANSWERED = ("finished", "undelivered")


class CallLimit(InvalidRequest):
    """The execution has made all the calls it may make."""


class Broker:
    def __init__(
        self,
        *,
        database: Engine,
        tokenizer: ChatTokenizer,
        context_tokens: int,
        settings: ProxySettings,
        recorder: Recorder,
        dispatcher: Dispatcher,
        metrics: Metrics,
    ) -> None:
        self._database, self._tokenizer, self._context = database, tokenizer, context_tokens
        self._settings, self._recorder, self._dispatcher = settings, recorder, dispatcher
        self._metrics = metrics
        self._answers = Answers(tokenizer, settings.answer_format)
        self.context_tokens, self.spell = context_tokens, tokenizer.token_bytes

    async def open(self, execution: LiveExecution, request: ModelRequest) -> LiveCall:
        """The call that answers `request`: a new one, or the one that already does.

        Raises InvalidRequest (CallLimit, ContextOverflow among them) for what is refused.
        """
        if execution.history is None:
            await self._read_back(execution)
        await self._dispatcher.check(request)
        running = execution.running.get(request.sha256)
        if running is not None:
            return running
        unheard = execution.undelivered.get(request.sha256)
        if unheard is not None:
            return execution.remembered.get(unheard) or await self._revive(execution, request, unheard)
        limit = execution.registration.call_limit
        if execution.answered + len(execution.running) >= limit:
            raise CallLimit(f"this execution may make {limit} model calls and has made them")
        return self._start(execution, request)

    async def count(self, execution: LiveExecution, request: ModelRequest) -> int:
        """Prompt length of a request, in tokens. Raises InvalidRequest. No engine is asked, nothing is recorded."""
        if execution.history is None:
            await self._read_back(execution)
        history = execution.history or History()
        return len(history.prompt(self._tokenizer, request.messages, request.tools))

    def delivered(self, execution: LiveExecution, call: LiveCall) -> None:
        """A client has received the answer to its last byte."""
        if call.delivered or call.finish is None:
            return
        call.delivered = True
        self._received(execution, call.call, call.request.sha256)

    async def close(self, execution: LiveExecution) -> None:
        """End what still runs for an execution that is over; its records are durable afterwards."""
        tasks = [call.task for call in execution.running.values() if call.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._recorder.flush()

    def _received(self, execution: LiveExecution, call: str, sha256: str) -> None:
        if execution.undelivered.get(sha256) == call:
            del execution.undelivered[sha256]
        self._recorder.post(rows.call_state(call, "finished"))
        self._metrics.calls.labels("finished").inc()

    def _start(self, execution: LiveExecution, request: ModelRequest) -> LiveCall:
        registration, history = execution.registration, execution.history or History()
        prompt = history.prompt(self._tokenizer, request.messages, request.tools)
        sampling = registration.sampling
        budget = output_budget(len(prompt), request.asked_tokens, sampling.max_call_tokens, self._context)
        call = LiveCall(
            call=uuid.uuid4().hex,
            execution=execution.name,
            sequence=execution.next_sequence,
            seed=registration.seed,
            request=request,
            prompt=prompt,
            chain=prompt.record_key(),
            sampling=sampling,
            so_far=Continuation(prompt.ids, budget),
            answer=self._answer(prompt, request),
            completed_calls=execution.answered,
        )
        execution.next_sequence += 1
        execution.running[request.sha256] = call
        self._metrics.tokens.labels("prompt").inc(len(prompt))
        self._metrics.tokens.labels("prompt_reused").inc(prompt.shared)
        if prompt.fork_reason is not None:
            self._metrics.forks.labels(prompt.fork_reason).inc()
        if not execution.called:
            execution.called = True
            self._recorder.post(rows.first_call(execution.name, call.started_at))
        self._recorder.post(
            rows.open_call(
                call=call.call,
                execution=execution.name,
                attempt=registration.attempt,
                sequence=call.sequence,
                dialect=request.dialect,
                role=request.role,
                prompt=prompt,
                chain=call.chain,
                requested=request.requested,
                imposed={**sampling.model_dump(), "budget": budget, "stop": list(request.stops)},
                request_sha256=request.sha256,
                started_at=call.started_at,
            )
        )
        self._heard(execution, prompt)
        call.task = asyncio.create_task(self._run(execution, call))
        return call

    def _heard(self, execution: LiveExecution, prompt: Prompt) -> None:
        """A request that contains an answer proves that the answer was received, whatever the socket said."""
        if not execution.undelivered or execution.history is None:
            return
        unheard = {call: sha256 for sha256, call in execution.undelivered.items()}
        for call in execution.history.answers_in(prompt):
            live = execution.remembered.get(call)
            if live is not None:
                live.delivered = True
            if call in unheard:
                self._received(execution, call, unheard[call])

    async def _run(self, execution: LiveExecution, call: LiveCall) -> None:
        error: CallError | None = None
        try:
            finish = await self._dispatcher.answer(call)
            call.close_text()
            await asyncio.sleep(0)  # what was sampled goes out before the work of recording it
            await self._record(execution, call, finish)
            return
        except EngineUnavailable as problem:
            error = CallError(503, "no_engine", str(problem), self._settings.retry_after_seconds)
        except InvalidRequest as problem:
            error = CallError(400, "refused_by_engine", str(problem))
        except asyncio.CancelledError:
            error = CallError(410, "execution_closed", "this execution is closed")
            raise
        except Exception as problem:
            log.exception("call %s failed", call.call)
            error = CallError(500, "proxy_error", f"{type(problem).__name__}: {problem}")
        finally:
            execution.running.pop(call.request.sha256, None)
            if error is not None:
                self._recorder.post(rows.call_state(call.call, "failed", error.message))
                self._metrics.calls.labels("failed").inc()
                call.end(None, error)

    async def _record(self, execution: LiveExecution, call: LiveCall, finish: str) -> None:
        answer = call.answer_message()
        call.chain = call.prompt.record_key(answer)
        ended = time.monotonic()
        execution.answered += 1
        try:
            await self._recorder.write(
                rows.answer_call(call.call, call.so_far, finish, call.chain, execution.name, execution.answered)
            )
        except BaseException:
            execution.answered -= 1
            raise
        self._metrics.committed.observe(time.monotonic() - ended)
        self._metrics.tokens.labels("output").inc(len(call.so_far.ids))
        (execution.history or History()).add(call.call, call.prompt, self._tokenizer, call.so_far.ids, answer)
        execution.undelivered[call.request.sha256] = call.call
        execution.remembered[call.call] = call
        call.end(finish)

    async def _read_back(self, execution: LiveExecution) -> None:
        async with execution.reading:
            if execution.history is not None:
                return
            history, recorded = await asyncio.to_thread(self._recorded, execution.name)
            for call in recorded:
                execution.answered += call.state in _ANSWERED
                if call.state == "undelivered":
                    execution.undelivered[call.fields["request_sha256"]] = call.call
            execution.next_sequence = max((call.sequence + 1 for call in recorded), default=0)
            execution.called = bool(recorded)
            execution.history = history

    def _recorded(self, name: str) -> tuple[History, list[RecordedCall]]:
        history = History()
        with self._database.connect() as connection:
            recorded = calls_of(connection, name)
        for call in recorded:
            if call.state in _ANSWERED:
                history.restore(call, self._tokenizer)
        return history, recorded

    async def _revive(self, execution: LiveExecution, request: ModelRequest, name: str) -> LiveCall:
        """An answer that nobody has received yet and nobody holds any more, for whoever asks for it again."""
        await self._recorder.flush()
        known = await asyncio.to_thread(self._row, name)
        turn = (execution.history or History()).turn(name)
        prompt = Prompt(turn, turn.prompt_length, (), known.parent_call, known.shared_tokens, known.fork_reason)
        so_far = Continuation(prompt.ids, max(1, len(turn.output)))
        so_far.ids.extend(turn.output.tolist())
        so_far.logprobs.extend(unpack_logprobs(known.output_logprobs))
        call = LiveCall(
            call=name,
            execution=execution.name,
            sequence=known.sequence,
            seed=execution.registration.seed,
            request=request,
            prompt=prompt,
            chain=known.history_sha256,
            sampling=execution.registration.sampling,
            so_far=so_far,
            answer=self._answer(prompt, request),
            completed_calls=execution.answered,
            started_at=known.started_at,
        )
        call.push(so_far.ids)
        call.close_text()
        call.end(known.finish)
        execution.remembered[name] = call
        return call

    def _row(self, call: str) -> Row[Any]:
        with self._database.connect() as connection:
            return connection.execute(select(schema.calls).where(schema.calls.c.call == call)).one()

    def _answer(self, prompt: Prompt, request: ModelRequest) -> Answer:
        return self._answers.begin(
            prompt.ids,
            stops=request.stops,
            tools=request.tools if request.calls_allowed else None,
            single_call=request.single_call,
            mark_text=request.logprobs,
        )
