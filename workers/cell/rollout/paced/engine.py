"""The paced engine itself: queue, slots, KV accounting, aborts, pauses, weight versions.

Invariants: at most `slots` requests run; their reserved tokens fit the KV; a paused engine says nothing; every token
carries the version it was said under. It knows no HTTP.
"""

import asyncio
import math
import os
import signal

from workers.cell.rollout.paced.cache import PrefixCache
from workers.cell.rollout.paced.faults import FaultKind, Faults
from workers.cell.rollout.paced.generation import Generation, aborted, finish_of
from workers.cell.rollout.paced.script import ScriptReader, load_script
from workers.cell.rollout.paced.settings import PacedSettings
from workers.cell.rollout.paced.tokens import SeededModel, advance, logprob, mix
from workers.cell.rollout.paced.vocabulary import read_vocabulary, weights_checksum
from workflows.messages.errors import InvalidRequest, StillHeld

TICK_SECONDS = 0.004
DIE_AFTER_SECONDS = 0.05


class PacedEngine:
    def __init__(self, settings: PacedSettings) -> None:
        self.settings = settings
        self.vocabulary = read_vocabulary(settings.model, settings.vocab_size)
        self.voice = SeededModel(self.vocabulary.ordinary, settings.mean_output_tokens, settings.seed)
        self.reader = ScriptReader(
            load_script(settings.script), self.vocabulary.tokenizer, next(iter(self.vocabulary.ends[-1:]), None)
        )
        self.model_path, self.version = settings.model, settings.version
        self.checksum = weights_checksum(settings.model)
        self.cache, self.faults = PrefixCache(), Faults()
        self.waiting: list[Generation] = []
        self.running: list[Generation] = []
        self.released: set[str] = set()
        self.counts = {"requests": 0, "aborted": 0, "prompt_tokens": 0, "cached_tokens": 0, "served_while_released": 0}
        self.paused: str | None = None
        self._updating = False
        self._open = asyncio.Event()
        self._open.set()
        self._timer: asyncio.TimerHandle | None = None
        self._frozen_at: float | None = None

    # Requests ---------------------------------------------------------------------------------------------------

    def new_generation(self, body: dict) -> Generation:
        """A request from the body of `/generate`. Raises InvalidRequest as the real engine answers 400."""
        prompt, params = body.get("input_ids"), dict(body.get("sampling_params") or {})
        if not isinstance(prompt, list) or not prompt or not all(isinstance(token, int) for token in prompt):
            raise InvalidRequest("one flat, non-empty list of ids is expected", field="input_ids")
        if not all(0 <= token < self.vocabulary.size for token in prompt):
            raise InvalidRequest("an id is outside the vocabulary", field="input_ids")
        unknown = set(params) - _SAMPLING
        if unknown:
            raise InvalidRequest(f"Unexpected keyword argument '{sorted(unknown)[0]}'", field="sampling_params")
        asked = params.get("max_new_tokens") or 128
        if params.keys() & _GRAMMARS and self.settings.grammar_backend == "none":
            raise InvalidRequest("Grammar-based generation is not supported with --grammar-backend none")
        if len(prompt) >= self.settings.context:
            raise InvalidRequest(
                f"The input ({len(prompt)} tokens) is longer than the model's context length "
                f"({self.settings.context} tokens)."
            )
        if len(prompt) + asked > self.settings.context:
            raise InvalidRequest(
                f"Requested token count exceeds the model's maximum context length of {self.settings.context} tokens."
            )
        rid = body.get("rid") or os.urandom(16).hex()
        if any(other.rid == rid for other in (*self.waiting, *self.running)):
            raise InvalidRequest(f"Duplicate request ID detected: {rid}")
        session = str(body.get("session_id") or "")
        room = min(self.settings.context, self.settings.kv_tokens) - 1 - len(prompt) - 1
        asked_ends = (*(params.get("stop_token_ids") or ()), *self.vocabulary.ends)
        ends = () if params.get("ignore_eos") else tuple(dict.fromkeys(asked_ends))
        return Generation(
            rid=rid,
            prompt=prompt,
            max_new_tokens=max(1, min(asked, room)),
            ends=ends,
            key=f"{body.get('extra_key') or ''}|{body.get('cache_salt') or ''}",
            session=session,
            fault=self.faults.take(session),
            scripted=None if params.get("ignore_eos") else self.reader.remaining(prompt, session),
            return_logprob=bool(body.get("return_logprob")),
            least=int(params.get("min_new_tokens") or 0),
        )

    async def submit(self, generation: Generation) -> None:
        """Queue a request; it waits while the engine is paused or loading."""
        await self._open.wait()
        self.counts["requests"] += 1
        self.waiting.append(generation)
        self._admit()

    def _admit(self) -> None:
        while self.waiting and self.paused is None and len(self.running) < self.settings.slots:
            generation = self.waiting[0]
            reserved = sum(other.reserved for other in self.running)
            if self.running and reserved + generation.reserved > self.settings.kv_tokens:
                return
            self.running.append(self.waiting.pop(0))
            generation.cached = self.cache.match(generation.key, generation.states)
            self.cache.shrink(self.settings.kv_tokens - reserved - generation.reserved)
            self.counts["prompt_tokens"] += len(generation.states)
            self.counts["cached_tokens"] += generation.cached
            self.counts["served_while_released"] += bool(self.released)
            self._begin(generation)

    # Tokens -----------------------------------------------------------------------------------------------------

    def _begin(self, generation: Generation) -> None:
        """Its first token comes after the prompt has been computed; one timer serves all requests."""
        now = self._now()
        prefill = (len(generation.states) - generation.cached) / self.settings.prefill_tokens_per_second
        generation.started = generation.started or now
        generation.due = now + prefill + self._interval(generation)
        self._wake_at(max(generation.due, now + TICK_SECONDS))

    def _interval(self, generation: Generation) -> float:
        slow = generation.fault.factor if generation.fault_is(FaultKind.SLOW) and generation.fault else 1.0
        return slow / self.settings.tokens_per_second

    def _wake_at(self, when: float) -> None:
        if self._frozen_at is None and (self._timer is None or when < self._timer.when()):
            self._sleep()
            self._timer = asyncio.get_running_loop().call_at(when, self._tick)

    def _sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        """Everybody says what is due."""
        self._timer = None
        now = self._now()
        for generation in tuple(self.running):
            said = False
            while generation.due <= now and generation.finish is None:
                said = True
                if self._strike(generation):
                    break
                self._say(generation)
                generation.due += self._interval(generation)
            if generation.finish is not None:
                self._leave(generation)
            elif said:
                generation.changed.set()
        next_due = min((generation.due for generation in self.running), default=math.inf)
        if next_due < math.inf:
            self._wake_at(max(next_due, now + TICK_SECONDS))

    def _say(self, generation: Generation) -> None:
        state, said = generation.states[-1], len(generation.output)
        if generation.scripted is not None and said < len(generation.scripted):
            token, value = generation.scripted[said], logprob(mix(state))
        else:
            session = generation.session if self.settings.vary_by_session else ""
            ends = generation.ends if said + 1 > generation.least else ()
            token, value = self.voice.next_token(self.checksum, session, state, ends)
        version = self.version
        if generation.fault_is(FaultKind.BAD_ID):
            token = self.vocabulary.size + 7
        if generation.fault_is(FaultKind.LABEL) and generation.fault:
            version = generation.fault.label
        generation.say(token, value, advance(state, token), version)
        generation.finish = finish_of(generation.output, generation.budget, generation.ends)

    def _strike(self, generation: Generation) -> bool:
        """Let an armed fault act; True if it did and nothing is to be said now."""
        if generation.fault_is(FaultKind.ABORT):
            generation.end(aborted("unasked"))
            return True
        if generation.fault_is(FaultKind.SHORT):
            generation.end({"type": "length", "length": len(generation.output)})
            return True
        if generation.fault_is(FaultKind.HANG):
            generation.due = math.inf  # until it is aborted or the process ends
            return True
        if generation.fault_is(FaultKind.DIE):
            generation.due = math.inf
            asyncio.get_running_loop().call_later(DIE_AFTER_SECONDS, self._die, generation)
            return True
        return False

    def _die(self, generation: Generation) -> None:
        if self.settings.may_die:
            os.kill(os.getpid(), signal.SIGKILL)
        generation.end(aborted("would have died"))
        self._leave(generation)

    def _leave(self, generation: Generation) -> None:
        if generation in self.running:
            self.running.remove(generation)
            self.cache.insert(generation.key, generation.states)
            self.cache.shrink(self.settings.kv_tokens - sum(other.reserved for other in self.running))
        if generation in self.waiting:
            self.waiting.remove(generation)
        generation.changed.set()
        self._admit()

    # Control ----------------------------------------------------------------------------------------------------

    def abort(self, rid: str = "", abort_all: bool = False) -> None:
        """As the real one: nothing for an empty or unknown rid; else every request whose rid *starts with* it."""
        if not abort_all and not any(other.rid == rid for other in (*self.waiting, *self.running)):
            return
        if self.faults.take_one(FaultKind.LOSE_ABORT):
            return
        delay = self.faults.abort_delay()
        if delay:
            asyncio.get_running_loop().call_later(delay, self._abort_now, rid, abort_all)
        else:
            self._abort_now(rid, abort_all)

    def _abort_now(self, rid: str, abort_all: bool) -> None:
        for generation in (*self.waiting, *self.running):
            if abort_all or generation.rid.startswith(rid):
                self.counts["aborted"] += 1
                generation.end(aborted())
                self._leave(generation)

    def abandoned(self, generation: Generation) -> None:
        """Its client hung up: as the real one, it is noticed only after a while."""
        if generation.finish is None:
            later = asyncio.get_running_loop().call_later
            later(self.settings.disconnect_seconds, self._abort_now, generation.rid, False)

    def pause(self, mode: str) -> None:
        """`abort` ends all; `retract` sends running requests back to the queue; `in_place` freezes them."""
        if mode not in ("abort", "retract", "in_place"):
            raise InvalidRequest("one of abort, retract, in_place", field="mode")
        self.paused = mode
        self._open.clear()
        if mode == "abort":
            self._abort_now("", True)
        elif mode == "in_place":
            self._frozen_at = self._now() if self._frozen_at is None else self._frozen_at
            self._sleep()
        else:
            self.waiting[:0] = self.running
            self.running.clear()

    def resume(self) -> None:
        self.paused = None
        if self._frozen_at is not None:
            pause, self._frozen_at = self._now() - self._frozen_at, None
            for generation in self.running:
                generation.due += pause
            self._tick()
        if not self._updating:
            self._open.set()
        self._admit()

    async def load(self, folder: str, version: str | None, *, flush: bool = True, abort_all: bool = False) -> None:
        """New weights from `folder`. Waits for running requests unless paused. Raises InvalidSpec if it cannot."""
        if abort_all:
            self._abort_now("", True)
        self._updating = True
        self._open.clear()
        try:
            while self.paused is None and (self.running or self.waiting):
                await asyncio.sleep(TICK_SECONDS)
            slow = self.faults.take_one(FaultKind.LOAD_SLOW)
            await asyncio.sleep(self.settings.load_seconds + (slow.seconds if slow else 0.0))
            if self.faults.take_one(FaultKind.LOAD_FAIL):
                raise StillHeld("weights could not be loaded (fault)")
            self.checksum = await asyncio.to_thread(weights_checksum, folder)
            self.model_path = folder
            self.version = version if version is not None else self.version
            if flush and not self.running:
                self.cache.flush()
        finally:
            self._updating = False
            if self.paused is None:
                self._open.set()

    def flush(self) -> None:
        """Drop cached tokens. Raises StillHeld while requests run or wait."""
        if self.running or self.waiting:
            raise StillHeld(f"{len(self.running)} running, {len(self.waiting)} waiting")
        self.cache.flush()

    def release(self, tags: set[str]) -> None:
        """Give memory back. Raises StillHeld unless idle or paused."""
        if (self.running or self.waiting) and self.paused is None:
            raise StillHeld("requests are running")
        self.released |= tags
        self.cache.flush()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def used_tokens(self) -> int:
        return sum(len(generation.states) for generation in self.running)


_GRAMMARS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})
_SAMPLING = _GRAMMARS | frozenset(
    {
        *("max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids"),
        *("ignore_eos", "sampling_seed", "n", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
    }
)
"""Sampling fields the real server knows; another one is refused there too."""
