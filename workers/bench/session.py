"""What one long session costs the proxy: reading, encoding and recording each of its calls, memory and disk.

A made-up agent session of a given number of calls grows to a given number of tokens. Every call goes the way of a real
one but for the engine: its JSON body is read and checked by the dialect, its prompt is found and encoded, a made-up
answer of about the usual length is recorded durably. The last call is then compared with a call that brings the very
same new messages onto a history of a thousand tokens, in turns, within the same run.
"""

import asyncio
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infra.demo.bpe import save_tokenizer, train_tokenizer
from infra.records.database import open_database
from infra.tokenizer import ChatTokenizer
from workers.proxy import rows
from workers.proxy.call import ModelRequest
from workers.proxy.continuation import Continuation
from workers.proxy.dialect import DIALECTS, wire
from workers.proxy.history import History, Prompt
from workers.proxy.recorder import Recorder

SHORT_HISTORY_TOKENS = 1000
ANSWER_SHARE = 0.25
"""Of a call's new tokens, those the policy sampled; the rest is a tool's result."""
ROUNDS = 15
_WORDS = (
    *("return", "self", "import", "error", "line", "file", "test", "value", "index", "none", "true", "assert", "class"),
    *("def", "path", "module", "the", "of", "and", "expected", "got", "called", "with", "raise", "while", "for", "in"),
)


@dataclass
class SessionCost:
    """One entry a call: tokens of its prompt, and milliseconds of processor time for reading it, for finding what is
    known of it, for encoding what is new, and for listing all its ids for an engine; of the clock for recording it."""

    prompt_tokens: list[int] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    find_ms: list[float] = field(default_factory=list)
    encode_ms: list[float] = field(default_factory=list)
    list_ms: list[float] = field(default_factory=list)
    record_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    """What the command prints. `*_last` and `*_short`: medians over `ROUNDS` rounds taken in turns, by the clock unless
    they say `cpu`. `encode_ms`: finding what is known and encoding what is new. `encode_added_ms` and `list_added_ms`:
    what the long history adds to that, and to listing the ids for an engine; `added_cpu_ms`: to both, in processor
    time. `*_total_cpu_seconds`: of all calls. `late_over_early`: processor time to encode what is new in one of the
    last tenth of the calls over one of the second tenth. Bytes are per unique token."""

    calls: int
    tokens: int
    unique_tokens: int
    encode_ms_short: float
    encode_ms_last: float
    encode_added_ms: float
    list_added_ms: float
    added_cpu_ms: float
    read_ms_short: float
    read_ms_last: float
    record_ms_p50: float
    find_total_cpu_seconds: float
    encode_total_cpu_seconds: float
    late_over_early: float
    memory_bytes_per_token: float
    disk_bytes_per_token: float
    bytes_per_token: float


class Session:
    """A conversation that grows by an answer with a tool call and the tool's result at a time."""

    def __init__(self, tokenizer: ChatTokenizer, seed: int = 0) -> None:
        self.tokenizer, self._draw = tokenizer, random.Random(seed)
        sample = _prose(self._draw, 4000)
        self._tokens_per_word = len(tokenizer.encode_text(sample)) / 4000
        system = {"role": "system", "content": _prose(self._draw, 60)}
        self.messages: list[dict[str, Any]] = [system, {"role": "user", "content": _prose(self._draw, 40)}]
        self.answers = 0

    def prose(self, tokens: float) -> str:
        return _prose(self._draw, max(1, round(tokens / self._tokens_per_word)))

    def answer(self, tokens: float) -> dict[str, Any]:
        self.answers += 1
        arguments = json.dumps({"path": f"src/{self.answers}.py", "text": self.prose(tokens * 0.7), "at": self.answers})
        call = {
            "id": f"call_{self.answers:06}",
            "type": "function",
            "function": {"name": "edit", "arguments": arguments},
        }
        return {"role": "assistant", "content": self.prose(tokens * 0.3), "tool_calls": [call]}

    def result(self, tokens: float) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": f"call_{self.answers:06}", "content": self.prose(tokens)}

    def body(self) -> bytes:
        """The request a harness sends now."""
        return json.dumps({"model": "policy", "messages": self.messages, "max_tokens": 4096}).encode()

    def sampled(self, answer: dict[str, Any]) -> list[int]:
        """Ids that a policy could have sampled for this answer."""
        text = answer["content"] + answer["tool_calls"][0]["function"]["arguments"]
        return [*self.tokenizer.encode_text(text), self.tokenizer.end_of_turn_ids[-1]]


def default_tokenizer(folder: Path) -> Path:
    """A tokenizer of our own with a plain template, where no model folder is given."""
    texts = [_prose(random.Random(seed), 400) for seed in range(20)]
    save_tokenizer(train_tokenizer(texts, vocabulary=2048), folder, context=2_000_000)
    return folder


async def measure(
    model: Path, folder: Path, *, calls: int, tokens: int, told: Callable[[str], None]
) -> tuple[SessionCost, Figures]:
    """Run the session with its records in `folder`."""
    DIALECTS["chat"].load()
    tokenizer = ChatTokenizer(model)
    gc.collect()
    gc.freeze()  # as the proxy does
    database = open_database(f"sqlite:///{folder / 'session.db'}", create=True)
    empty = _disk(folder)
    recorder = Recorder(database)
    session, history, cost = Session(tokenizer), History(), SessionCost()
    length, made = 0, []
    for number in range(calls):
        request, cost_read = _worked(_read, session.body())
        place, cost_find = _worked(history.find, tokenizer, request.messages, request.tools)
        prompt, cost_encode = _worked(history.encode, tokenizer, place)
        _, cost_list = _worked(getattr, prompt, "ids")
        length = len(prompt)
        cost.prompt_tokens.append(length)
        cost.read_ms.append(cost_read)
        cost.find_ms.append(cost_find)
        cost.encode_ms.append(cost_encode)
        cost.list_ms.append(cost_list)
        if number == calls - 1:
            break
        share = (tokens - length) / (calls - 1 - number)
        answer = session.answer(share * ANSWER_SHARE)
        output = session.sampled(answer)
        since = time.perf_counter()
        await _record(recorder, history, tokenizer, request, prompt, output, answer, number)
        cost.record_ms.append((time.perf_counter() - since) * 1000)
        made = [answer, session.result(share * (1 - ANSWER_SHARE))]
        session.messages += made
        if number % 100 == 99:
            told(f"call {number + 1} of {calls}: {length} tokens")
    short = _short_session(tokenizer, made)
    figures = _figures(tokenizer, session, history, short, cost)
    await recorder.flush()
    await asyncio.to_thread(recorder.close)
    disk = _disk(folder) - empty
    database.dispose()
    memory = deep_bytes(history)
    return cost, Figures(
        **figures,
        memory_bytes_per_token=memory / length,
        disk_bytes_per_token=disk / length,
        bytes_per_token=(memory + disk) / length,
    )


def _figures(
    tokenizer: ChatTokenizer, session: Session, history: History, short: "tuple[Session, History]", cost: SessionCost
) -> dict[str, Any]:
    reads, encodes, lists, work = ({"last": [], "short": []} for _ in range(4))
    for _ in range(ROUNDS):
        for name, (talk, known) in (("last", (session, history)), ("short", short)):
            request, taken = _timed(_read, talk.body())
            reads[name].append(taken)
            since = time.thread_time()
            prompt, taken = _timed(known.prompt, tokenizer, request.messages, request.tools)
            encodes[name].append(taken)
            _, taken = _timed(getattr, prompt, "ids")
            lists[name].append(taken)
            work[name].append((time.thread_time() - since) * 1000)
    tenth = max(1, len(cost.encode_ms) // 10)
    return {
        "calls": len(cost.encode_ms),
        "tokens": cost.prompt_tokens[-1],
        "unique_tokens": cost.prompt_tokens[-1],
        "encode_ms_short": statistics.median(encodes["short"]),
        "encode_ms_last": statistics.median(encodes["last"]),
        "encode_added_ms": _added(encodes),
        "list_added_ms": _added(lists),
        "added_cpu_ms": _added(work),
        "read_ms_short": statistics.median(reads["short"]),
        "read_ms_last": statistics.median(reads["last"]),
        "record_ms_p50": statistics.median(cost.record_ms),
        "find_total_cpu_seconds": sum(cost.find_ms) / 1000,
        "encode_total_cpu_seconds": sum(cost.encode_ms) / 1000,
        "late_over_early": statistics.median(cost.encode_ms[-tenth:])
        / statistics.median(cost.encode_ms[tenth : 2 * tenth]),
    }


def _added(samples: dict[str, list[float]]) -> float:
    return statistics.median(samples["last"]) - statistics.median(samples["short"])


def _short_session(tokenizer: ChatTokenizer, new: list[dict[str, Any]]) -> tuple[Session, History]:
    """A session of a thousand tokens before the same new messages."""
    session, history = Session(tokenizer, seed=1), History()
    opening = len(history.prompt(tokenizer, session.messages).ids)
    session.messages[1] = {"role": "user", "content": session.prose(SHORT_HISTORY_TOKENS - opening)}
    request = _read(session.body())
    prompt = history.prompt(tokenizer, request.messages)
    history.add("first", prompt, tokenizer, session.sampled(new[0]), new[0])
    session.messages += new
    return session, history


async def _record(
    recorder: Recorder,
    history: History,
    tokenizer: ChatTokenizer,
    request: ModelRequest,
    prompt: Prompt,
    output: list[int],
    answer: dict[str, Any],
    number: int,
) -> None:
    call = f"{number:032x}"
    opened = rows.open_call(
        call=call,
        execution="bench/execution/b/0000/00",
        attempt=1,
        sequence=number,
        dialect=request.dialect,
        role=request.role,
        prompt=prompt,
        chain=prompt.record_key(),
        requested=request.requested,
        imposed={"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_call_tokens": 4096, "budget": 4096, "stop": []},
        request_sha256=request.sha256,
        started_at=time.time(),
    )
    recorder.post(opened)
    so_far = Continuation(prompt.ids, len(output), output, _logprobs(len(output), number), [3] * len(output))
    key = prompt.record_key(answer)
    await recorder.write(rows.answer_call(call, so_far, "stop", key, "bench/execution/b/0000/00", number + 1))
    history.add(call, prompt, tokenizer, output, answer)
    recorder.post(rows.call_state(call, "finished"))


def _logprobs(count: int, seed: int) -> list[float]:
    """As hard to compress as real ones."""
    return (-np.random.default_rng(seed).exponential(0.5, count)).astype(np.float32).tolist()


def _read(raw: bytes) -> ModelRequest:
    return DIALECTS["chat"].parse(wire.loads(raw), {})


def _prose(draw: random.Random, words: int) -> str:
    return " ".join(
        draw.choice(_WORDS) if draw.random() < 0.8 else f"{draw.choice(_WORDS)}_{draw.randrange(1000)}\n"
        for _ in range(words)
    )


def _worked(what: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The result, and milliseconds of this thread's processor time: other work on the machine does not count."""
    since = time.thread_time()
    result = what(*arguments)
    return result, (time.thread_time() - since) * 1000


def _timed(what: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The result, and milliseconds of the clock."""
    since = time.perf_counter()
    result = what(*arguments)
    return result, (time.perf_counter() - since) * 1000


def _disk(folder: Path) -> int:
    """Bytes of the records, write-ahead log included."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.name.startswith("session.db"))


def deep_bytes(*roots: Any) -> int:
    """Bytes of everything reachable, each object once; classes, functions and modules are not counted."""
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    total = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | type(sys) | type(deep_bytes)):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        below: Iterable[Any] = gc.get_referents(thing)
        waiting.extend(below)
    return total
