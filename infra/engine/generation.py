"""One generation: what is asked of an engine and what comes back, as plain data.

Guards live here because SGLang has none: an id outside the vocabulary kills the engine, and an abort hits every request
whose id starts with the given one, so request ids have one fixed length.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from workflows.messages.errors import EngineUnavailable, InvalidRequest

RID = re.compile(r"^[0-9a-f]{36}$")


class EngineRefused(EngineUnavailable):
    """The engine answered, but did not take the request: now, or for `retry_after_seconds` if it said so."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


Finish = Literal["stop", "length", "abort"]


def new_rid() -> str:
    """A fresh request id of the one allowed form. Every dispatch gets its own: a late abort must not hit a retry."""
    return secrets.token_hex(18)


def check_rid(rid: str) -> str:
    if not RID.fullmatch(rid):
        raise InvalidRequest("must be 36 lower-case hex digits", field="rid")
    return rid


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Token-in, token-out. `cache_key` separates KV of different weights: ``run|version|checksum``, never empty.

    `session_id` names the execution, for the KV hand-off. Log-probs come from the temperature-scaled softmax over the
    whole vocabulary: with `top_p` < 1, `top_k` > 0 or `min_p` > 0 they are not those of the distribution sampled from.
    """

    rid: str
    input_ids: Sequence[int]
    max_new_tokens: int
    cache_key: str
    session_id: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    sampling_seed: int | None = None
    ignore_eos: bool = False
    extra_sampling: dict[str, Any] = field(default_factory=dict)

    def body(self, vocabulary: int) -> dict[str, Any]:
        """JSON for ``POST /generate``. Raises InvalidRequest for what would harm the engine."""
        check_rid(self.rid)
        if not self.cache_key:
            raise InvalidRequest("KV of different weights would mix", field="cache_key")
        if not self.input_ids:
            raise InvalidRequest("is empty", field="input_ids")
        if self.max_new_tokens < 1:
            raise InvalidRequest("must be at least 1", field="max_new_tokens")
        for name, ids in (("input_ids", self.input_ids), ("stop_token_ids", self.stop_token_ids)):
            if ids and not (min(ids) >= 0 and max(ids) < vocabulary):
                raise InvalidRequest(f"holds ids outside the vocabulary of {vocabulary}", field=name)
        sampling: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "stop_token_ids": list(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
            **self.extra_sampling,
        }
        if self.min_new_tokens:
            sampling["min_new_tokens"] = self.min_new_tokens
        if self.sampling_seed is not None:
            sampling["sampling_seed"] = self.sampling_seed
        body: dict[str, Any] = {
            "rid": self.rid,
            "input_ids": list(self.input_ids),
            "sampling_params": sampling,
            "return_logprob": True,
            "stream": True,
            "extra_key": self.cache_key,
        }
        if self.session_id is not None:
            body["session_id"] = self.session_id
        return body


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens [start, end) of one generation were sampled under weight version `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GenerateChunk:
    """New output tokens with their log-probs (natural log, same length), and what the engine says about them.

    `weight_version` holds for the newest token. `spans` is None until the last chunk (SGLang reports spans only there)
    and then covers the whole output. `matched` is the stop id that ended it, which is part of `ids`. `prompt_tokens`
    and `cached_tokens` (of the prompt, found in the KV cache) are known from the first chunk on.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish: Finish | None = None
    matched: int | None = None
    spans: tuple[VersionSpan, ...] | None = None
    message: str = ""


class ChunkReader:
    """Turns SGLang's events of one request into chunks, whether the server streams cumulatively or incrementally."""

    def __init__(self) -> None:
        self._seen = 0

    def read(self, event: dict[str, Any]) -> GenerateChunk:
        """Raises InvalidRequest if the engine refused the request, EngineUnavailable if the event makes no sense."""
        if "error" in event:
            raise refusal(event["error"])
        meta = event["meta_info"]
        reason = meta.get("finish_reason") or {}
        if reason.get("type") == "abort" and reason.get("status_code") == 400:
            raise InvalidRequest(str(reason.get("message", "refused by the engine")))
        total = meta.get("completion_tokens", 0)
        new = total - self._seen
        every_id, every_pair = event.get("output_ids") or (), meta.get("output_token_logprobs") or ()
        # All of them or only the new ones, and the same of both: else repeated tokens could hide a shift.
        if new < 0 or len(every_id) != len(every_pair) or len(every_id) not in (new, total):
            raise EngineUnavailable(
                f"the engine sent {len(every_id)} ids and {len(every_pair)} log-probs for {new} new tokens of {total}"
            )
        ids, pairs = (tuple(every_id[-new:]), every_pair[-new:]) if new else ((), ())
        if any(pair[1] != token for pair, token in zip(pairs, ids, strict=True)):
            raise EngineUnavailable("the engine sent log-probs of other tokens")
        if any(pair[0] is None for pair in pairs):
            raise EngineUnavailable("the engine sent a token without its log-prob")
        self._seen = total
        spans = meta.get("weight_versions")
        return GenerateChunk(
            ids=ids,
            logprobs=tuple(float(pair[0]) for pair in pairs),
            weight_version=str(meta.get("weight_version", "")),
            prompt_tokens=meta.get("prompt_tokens", 0),
            cached_tokens=meta.get("cached_tokens", 0),
            completion_tokens=total,
            finish=reason.get("type"),
            matched=reason.get("matched") if isinstance(reason.get("matched"), int) else None,
            spans=None if spans is None else tuple(VersionSpan(s["version"], s["start"], s["end"]) for s in spans),
            message=str(reason.get("message") or ""),
        )


def refusal(error: Any) -> InvalidRequest | EngineUnavailable:
    """The exception for an error body of SGLang, which comes as text or as an object with a code."""
    if isinstance(error, dict):
        text, code = str(error.get("message", error)), int(error.get("code") or 400)
    else:
        text, code = str(error), 400
    return InvalidRequest(text) if 400 <= code < 500 else EngineUnavailable(text)
