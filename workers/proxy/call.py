"""A model call in progress: what was asked, what has been said, who listens.

The call runs on its own; clients listen to it. One that goes away does not end it, and one that sends the same request
again while it runs, or before anyone has received its answer, hears the same answer from the start.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness_adapters.protocol import CallRole
from workers.proxy.continuation import Continuation
from workers.proxy.history import Prompt
from workers.proxy.text import AnswerText
from workflows.messages.burst import Sampling


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
    before that many; `grammar`: what the answer must match; `role`: what the call is for.
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


@dataclass(frozen=True)
class CallError:
    """Why a call has no answer, for the dialect to word. `code` is the dialect-neutral reason."""

    status: int
    code: str
    message: str
    retry_after_seconds: int | None = None


@dataclass(eq=False)
class LiveCall:
    """`deltas` are the pieces of text in order; `finish` (stop or length) or `error` is set when it is over."""

    call: str
    execution: str
    sequence: int
    seed: int
    request: ModelRequest
    prompt: Prompt
    chain: str
    sampling: Sampling
    so_far: Continuation
    text: AnswerText
    completed_calls: int
    started_at: float = field(default_factory=time.time)
    deltas: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    waited_seconds: float = 0.0
    finish: str | None = None
    error: CallError | None = None
    delivered: bool = False
    task: asyncio.Task[None] | None = None
    _listeners: set[asyncio.Event] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return self.finish is not None or self.error is not None

    @property
    def stopped(self) -> bool:
        """A stop string has ended the answer."""
        return self.text.stopped

    @property
    def has_shown(self) -> bool:
        """Whether a listener may have heard any of the answer."""
        return bool(self.deltas)

    def push(self, ids: Sequence[int]) -> int:
        """Take in sampled ids and show what they complete; how many belong to the answer (fewer at a stop string)."""
        shown, used = self.text.push(ids)
        self.show(shown)
        return used

    def close_text(self) -> None:
        """Show what was held back: no more ids will come."""
        self.show(self.text.finish())

    def show(self, text: str) -> None:
        if text:
            self.deltas.append(text)
            self.wake()

    def end(self, finish: str | None, error: CallError | None = None) -> None:
        self.finish, self.error = finish, error
        self.wake()

    def wake(self) -> None:
        for listener in self._listeners:
            listener.set()

    async def more(self, heard: int, seconds: float | None) -> bool:
        """Wait until there is more than `heard` deltas or the call is over; False after `seconds` of neither."""
        if len(self.deltas) > heard or self.over:
            return True
        listener = asyncio.Event()
        self._listeners.add(listener)
        try:
            async with asyncio.timeout(seconds):
                await listener.wait()
        except TimeoutError:
            return False
        finally:
            self._listeners.discard(listener)
        return True
