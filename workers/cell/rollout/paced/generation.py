"""One request inside the paced engine: what it was asked, what it has said, and how it ended."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.cell.rollout.paced.faults import Fault, FaultKind
from workers.cell.rollout.paced.tokens import chain


@dataclass(eq=False)
class Generation:
    """`max_new_tokens` is already cut to what context and KV allow, as the real engine does.

    `least`: no end before that many tokens. `due`: loop time of the next token.
    """

    rid: str
    prompt: list[int]
    max_new_tokens: int
    ends: tuple[int, ...]
    key: str
    session: str
    fault: Fault | None
    scripted: list[int] | None
    return_logprob: bool = True
    least: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    cached: int = 0
    finish: dict[str, Any] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    due: float = math.inf
    started: float = 0.0

    def __post_init__(self) -> None:
        self.states = chain(self.prompt)

    @property
    def reserved(self) -> int:
        return len(self.prompt) + self.max_new_tokens

    def fault_is(self, *kinds: FaultKind) -> bool:
        """Whether a fault of one of these kinds acts on this request now."""
        return self.fault is not None and self.fault.kind in kinds and len(self.output) >= self.fault.after_tokens

    @property
    def budget(self) -> int:
        """Tokens after which it ends by itself."""
        over = self.fault.tokens if self.fault is not None and self.fault.kind is FaultKind.OVERRUN else 0
        return self.max_new_tokens + over

    def say(self, token: int, logprob: float, state: int, version: str) -> None:
        """One more token, sampled under `version`."""
        at = len(self.output)
        self.output.append(token)
        self.logprobs.append(logprob)
        self.states.append(state)
        if self.spans and self.spans[-1][0] == version:
            self.spans[-1] = (version, self.spans[-1][1], at + 1)
        else:
            self.spans.append((version, at, at + 1))

    def end(self, finish: dict[str, Any]) -> None:
        if self.finish is None:
            self.finish = finish
            self.changed.set()

    def answer(self, version: str, *, since: int | None = None, upto: int | None = None) -> dict[str, Any]:
        """The engine's answer so far, in SGLang's shape. With `since`, only the tokens from there on."""
        start, stop = since or 0, len(self.output) if upto is None else upto
        shift = 1 if self.fault_is(FaultKind.MISALIGNED) else 0
        pairs = zip(self.logprobs[start:stop], self.output[start:stop], strict=True)
        logprobs = [[value, token + shift, None] for value, token in pairs]
        if self.fault_is(FaultKind.WRONG_LENGTH) and logprobs:
            logprobs.pop()
        spans = [s for s in self.spans if s[1] < stop] or [(version, 0, 0)]
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish if stop == len(self.output) else None,
            "prompt_tokens": len(self.prompt),
            "weight_version": spans[-1][0],
            "completion_tokens": stop,
            "cached_tokens": self.cached,
        }
        if meta["finish_reason"] is not None:  # as the real one: only with the end
            meta["weight_versions"] = [{"version": v, "start": a, "end": min(b, stop)} for v, a, b in spans]
        if self.return_logprob:
            meta["output_token_logprobs"] = logprobs
        return {"text": "", "output_ids": self.output[start:stop], "meta_info": meta}


def aborted(message: str = "Abort in waiting queue") -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


def finish_of(output: Sequence[int], budget: int, ends: Sequence[int]) -> dict[str, Any] | None:
    """The finish reason that `output` has earned, or None."""
    if output and output[-1] in ends:
        return {"type": "stop", "matched": output[-1]}
    if len(output) >= budget:
        return {"type": "length", "length": len(output)}
    return None
