"""The client side: one connection, one request at a time, nothing parsed before the answer is complete.

A client that parsed while it measured would compete with the engines for their core.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from workflows.messages.errors import Transient

_FIRST_TEXT = re.compile(rb'"content":\s?"[^"]')
_END = b"0\r\n\r\n"


@dataclass(frozen=True)
class Target:
    """Where a request goes. `host` and `port` of one HTTP server, `path` with its leading slash."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Heard:
    """One answer: seconds from sending to the first text and to the end, and what its usage says."""

    first_seconds: float
    seconds: float
    prompt_tokens: int
    output_tokens: int
    pieces: int
    finish: str


class Caller(asyncio.Protocol):
    """Connects on the first request and again whenever the server has closed the connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._first_at = self._sent_at = 0.0
        self._done: asyncio.Future[float] | None = None

    async def ask(self, body: Mapping[str, Any], *, seconds: float) -> Heard:
        """Send `body` and hear the whole answer. Raises Transient for anything but a complete stream."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            _, _ = await loop.create_connection(lambda: self, self._target.host, self._target.port)
        request = _request(self._target, json.dumps(body).encode())
        self._buffer, self._first_at, self._done = bytearray(), 0.0, loop.create_future()
        self._sent_at = time.perf_counter()
        if self._transport is None:
            raise Transient(f"{self._target.host}:{self._target.port} hung up")
        self._transport.write(request)
        try:
            ended_at = await asyncio.wait_for(self._done, seconds)
        except TimeoutError:
            raise Transient(f"no complete answer in {seconds:g} s: {bytes(self._buffer[-300:])!r}") from None
        finally:
            self._done = None
        return _heard(bytes(self._buffer), self._first_at - self._sent_at, ended_at - self._sent_at)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._buffer += data
        if not self._first_at and _FIRST_TEXT.search(self._buffer):
            self._first_at = now
        if self._done is None or self._done.done():
            return
        if self._buffer.endswith(_END) or not self._buffer.startswith(b"HTTP/1.1 200"):
            self._done.set_result(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_result(time.perf_counter())


def _request(target: Target, body: bytes) -> bytes:
    headers = {
        "host": f"{target.host}:{target.port}",
        "content-type": "application/json",
        "accept": "text/event-stream",
        "content-length": str(len(body)),
        **target.headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {target.path} HTTP/1.1\r\n{head}\r\n".encode() + body


def _heard(raw: bytes, first_seconds: float, seconds: float) -> Heard:
    """Read a recorded answer. Raises Transient unless it is a whole stream with text, a finish and its usage."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in rest:
        raise Transient(f"not a complete stream: {head[:200]!r} ... {rest[-300:]!r}")
    chunked = b"transfer-encoding: chunked" in head.lower()
    events = list(_events(_dechunked(rest) if chunked else rest))
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    choices = [choice for event in events for choice in event.get("choices", ())]
    finish = next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), None)
    pieces = sum(bool((choice.get("delta") or {}).get("content")) for choice in choices)
    if usage is None or finish is None or not pieces or first_seconds <= 0:
        raise Transient(f"usage {usage}, finish {finish}, {pieces} pieces of text")
    return Heard(first_seconds, seconds, usage["prompt_tokens"], usage["completion_tokens"], pieces, finish)


def _dechunked(rest: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = rest.index(b"\r\n", at)
        size = int(rest[at:line_end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(rest[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2


def _events(body: bytes) -> "list[dict[str, Any]]":
    lines = (line[6:] for line in body.splitlines() if line.startswith(b"data: "))
    return [json.loads(line) for line in lines if line != b"[DONE]"]
