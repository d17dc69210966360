"""A model call in progress: what was asked, what has been said, who listens.

The call runs on its own; clients listen to it. One that goes away does not end it, and one that sends the same request
again while it runs, or before anyone has received its answer, hears the same answer from the start.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness_adapters.protocol import CallRole
from workers.proxy.answer import Answer, Event, assistant_message
from workers.proxy.call_ids import mint
from workers.proxy.continuation import Continuation
from workers.proxy.history import Prompt
from workflows.messages.burst import Sampling

_CALL_ID_PREFIX = {"messages": "toolu_"}


@dataclass(frozen=True)
class Grammar:
    """Constrained output: `kind` is an engine's sampling field (json_schema, regex, ebnf), `text` its value.

    An engine's progress in a grammar cannot be carried to another one.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class ModelRequest:
    """A request, whatever its dialect.

    `messages`: chat messages as `infra.tokenizer.canonical` takes them; `tools`: function schemas as a chat template
    takes them; `asked_tokens`: output budget the harness wants, None if it did not say; `least_tokens`: no end of turn
    before that many; `grammar`: what the answer must match; `role`: what the call is for. `calls_allowed`: whether the
    answer may call tools (else their markup is text); `single_call`: at most one; `logprobs`: the client wants them.
    `echo`: what the dialect repeats in its answers.
    """

    dialect: str
    model: str
    messages: list[Mapping[str, Any]]
    stops: tuple[str, ...]
    asked_tokens: int | None
    stream: bool
    include_usage: bool
    requested: dict[str, Any]
    sha256: str
    tools: list[Mapping[str, Any]] | None = None
    least_tokens: int = 0
    grammar: Grammar | None = None
    role: CallRole = CallRole.MAIN
    calls_allowed: bool = True
    single_call: bool = False
    logprobs: bool = False
    echo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallError:
    """Why a call has no answer, for the dialect to word. `code` is the dialect-neutral reason."""

    status: int
    code: str
    message: str
    retry_after_seconds: int | None = None


@dataclass(eq=False)
class LiveCall:
    """`deltas` are the answer's events in order; `finish` (stop or length) or `error` is set when it is over."""

    call: str
    execution: str
    sequence: int
    seed: int
    request: ModelRequest
    prompt: Prompt
    chain: str
    sampling: Sampling
    so_far: Continuation
    answer: Answer
    completed_calls: int
    started_at: float = field(default_factory=time.time)
    deltas: list[Event] = field(default_factory=list)
    cached_tokens: int = 0
    waited_seconds: float = 0.0
    finish: str | None = None
    error: CallError | None = None
    delivered: bool = False
    task: asyncio.Task[None] | None = None
    _taken: bool = False
    _listeners: set[Callable[[], None]] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return self.finish is not None or self.error is not None

    @property
    def stopped(self) -> bool:
        """A stop string has ended the answer."""
        return self.answer.stopped

    @property
    def has_shown(self) -> bool:
        """Whether any of the answer may have reached a client. False for what only waits to be sent as a whole."""
        return self._taken

    def push(self, ids: Sequence[int]) -> int:
        """Take in sampled ids and show what they complete; how many belong to the answer (fewer at a stop string)."""
        events, used = self.answer.push(ids)
        self._show(events)
        return used

    def close_text(self) -> None:
        """Show what was held back: no more ids will come."""
        self._show(self.answer.finish())

    def begin_again(self) -> None:
        """Forget all that was sampled. Raises RuntimeError once anything may have reached a client."""
        if self.has_shown:
            raise RuntimeError(f"call {self.call} has been shown: it can only go on")
        self.answer.begin_again()
        self.deltas.clear()
        for kept in (self.so_far.ids, self.so_far.logprobs, self.so_far.versions):
            kept.clear()

    def take(self, heard: int) -> list[Event]:
        """The events after the first `heard`. Whoever takes them sends them."""
        events = self.deltas[heard:]
        self._taken = self._taken or bool(events)
        return events

    def end(self, finish: str | None, error: CallError | None = None) -> None:
        self.finish, self.error = finish, error
        self.wake()

    def wake(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """`listener` is called whenever there is more, or the call is over; until `unlisten`."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def answer_message(self) -> dict[str, Any]:
        """The assistant message that was sampled, as a chat message: what the harness will send back as history."""
        return assistant_message(self.deltas, self.call_id)

    def call_id(self, index: int) -> str:
        """Id of the answer's tool call number `index`; the same whenever it is asked for."""
        return mint(_CALL_ID_PREFIX.get(self.request.dialect, "call_"), self.call, index)

    def _show(self, events: Sequence[Event]) -> None:
        if events:
            self.deltas.extend(events)
            self.wake()
