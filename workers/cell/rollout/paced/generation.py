"""One request inside the paced engine: what it was asked, what it has said, and how it ended."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.cell.rollout.paced.faults import Fault, FaultKind
from workers.cell.rollout.paced.tokens import chain


@dataclass(eq=False)
class Generation:
    """`max_new_tokens` is already cut to what context and KV allow, as the real engine does."""

    rid: str
    prompt: list[int]
    max_new_tokens: int
    ends: tuple[int, ...]
    key: str
    session: str
    fault: Fault | None
    scripted: list[int] | None
    return_logprob: bool = True
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    cached: int = 0
    finish: dict[str, Any] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task | None = None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.states = chain(self.prompt)

    @property
    def reserved(self) -> int:
        return len(self.prompt) + self.max_new_tokens

    def fault_is(self, kind: FaultKind) -> bool:
        return self.fault is not None and self.fault.kind is kind and len(self.output) >= self.fault.after_tokens

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
        logprobs = [[value, token, None] for value, token in zip(self.logprobs, self.output, strict=True)][start:stop]
        if self.fault_is(FaultKind.WRONG_LENGTH) and logprobs:
            logprobs.pop()
        spans = [s for s in self.spans if s[1] < stop] or [(version, 0, 0)]
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish if stop == len(self.output) else None,
            "prompt_tokens": len(self.prompt),
            "weight_version": spans[-1][0],
            "weight_versions": [{"version": v, "start": a, "end": min(b, stop)} for v, a, b in spans],
            "completion_tokens": stop,
            "cached_tokens": self.cached,
            "e2e_latency": time.monotonic() - self.started,
        }
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
