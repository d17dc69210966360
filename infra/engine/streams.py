"""POST requests whose answers are read as they come, at a cost that hundreds of token streams can bear.

A full HTTP client spends more on a token than all the rest of the proxy; this one knows only what an engine's stream
needs: HTTP/1.1, one request at a time on a connection, connections kept for the next request. Its parser is the one
that uvicorn uses.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""A kept connection is used again within this; servers of this kind hang up after five seconds, perhaps just then."""

_KEPT = 64
"""Idle connections that are kept."""

_GRACE_SECONDS = 0.2
"""An answer of which the last event was read usually ends a moment later, and leaves its connection usable."""


class StreamBroken(Exception):
    """The connection could not be made, broke off, or did not speak HTTP."""


class Answer(Protocol):
    """An answer whose head has arrived."""

    @property
    def status(self) -> int: ...

    @property
    def retry_after(self) -> str | None: ...

    def parts(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come. Raises StreamBroken if it breaks off."""
        ...


class Streams(Protocol):
    """Where an engine client gets its streams from."""

    def post(self, path: str, content: bytes) -> AbstractAsyncContextManager[Answer]: ...

    async def close(self) -> None: ...


class HttpStreams:
    """Streams of one server. `headers` go with every request; `silence_seconds` bounds the wait for the next bytes."""

    def __init__(self, base_url: str, headers: dict[str, str], silence_seconds: float) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        fixed = {"host": parts.netloc, "content-type": "application/json", "accept": "text/event-stream", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._prefix, self._silence_seconds = parts.path.rstrip("/"), silence_seconds
        self._idle: deque[_Connection] = deque()
        self._leaving: set[_Connection] = set()
        self._closed = False

    @asynccontextmanager
    async def post(self, path: str, content: bytes) -> AsyncIterator["_Connection"]:
        """Send a request; the answer, once its head is here. Leaving early hangs up, unless the answer ends by itself
        within a moment.

        Raises StreamBroken.
        """
        connection = await self._connection()
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._head}content-length: {len(content)}\r\n\r\n"
        try:
            connection.send(head.encode() + content)
            await connection.head()
            yield connection
        finally:
            self._leaving.add(connection)
            connection.leave(self._left)

    async def close(self) -> None:
        self._closed = True
        for connection in (*self._idle, *self._leaving):
            connection.hang_up()
        self._idle.clear()

    def _left(self, connection: "_Connection") -> None:
        self._leaving.discard(connection)
        if connection.reusable and not self._closed and len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.hang_up()

    async def _connection(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and loop.time() - connection.heard_at < IDLE_SECONDS:
                return connection
            connection.hang_up()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self._silence_seconds), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise StreamBroken(f"no connection within {CONNECT_SECONDS:.0f} s") from error
        except OSError as error:
            raise StreamBroken(str(error) or type(error).__name__) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection and the answer that is being read from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_seconds: float) -> None:
        self._loop, self._silence_seconds = loop, silence_seconds
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.heard_at = 0.0
        self._why = ""
        self._left: Callable[[_Connection], None] | None = None
        self.lost = False
        self._begin()

    # What the user of an answer sees ----------------------------------------------------------------------------

    @property
    def reusable(self) -> bool:
        """The answer was read to its end and the server keeps the connection."""
        return self._complete and not self._parts and self._keeps and not self.lost

    def send(self, data: bytes) -> None:
        self._begin()
        if self._transport is None or self.lost:
            raise StreamBroken("the connection is closed")
        self._transport.write(data)
        self.heard_at = self._loop.time()
        self._timer = self._loop.call_later(self._silence_seconds, self._look)

    async def head(self) -> None:
        while not self._headed:
            await self._wait()

    async def parts(self) -> AsyncIterator[bytes]:
        while True:
            while self._parts:
                yield self._parts.popleft()
            if self._complete:
                return
            await self._wait()

    def leave(self, left: Callable[["_Connection"], None]) -> None:
        """Nobody reads any more. `left` is called when it is known whether the connection is usable."""
        self._parts.clear()
        if self._complete or self.lost or not self._headed:
            left(self)
            return
        self._left = left
        self._rest()
        self._timer = self._loop.call_later(_GRACE_SECONDS, self.hang_up)

    def hang_up(self) -> None:
        self._rest()
        self.lost = True
        left, self._left = self._left, None
        if left is not None:
            left(self)
        if self._transport is not None:
            self._transport.abort()

    # What the parser and the loop call ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            return
        if self._left is None:
            self._wake()
            return
        self._parts.clear()
        if self._complete:
            left, self._left = self._left, None
            left(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._left is not None:
            self.hang_up()
        if self._headed and not self._complete and self._until_close:
            self._complete = True  # an answer without a length ends with its connection
            self._rest()
        elif not self._complete:
            self._why = self._why or (str(exc) if exc is not None else "the connection was closed")
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"retry-after":
            self.retry_after = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._until_close = False

    def on_headers_complete(self) -> None:
        self.status, self._headed = self._parser.get_status_code(), True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._complete, self._keeps = True, self._parser.should_keep_alive()
        self._rest()

    # -------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: deque[bytes] = deque()
        self._headed = self._complete = self._keeps = False
        self._until_close = True
        self.status, self.retry_after = 0, None

    async def _wait(self) -> None:
        if self._why or self.lost:
            raise StreamBroken(self._why or "the connection was closed")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        """One timer an answer, not one a token."""
        left = self.heard_at + self._silence_seconds - self._loop.time()
        if left <= 0:
            self._fail(f"silent for {self._silence_seconds:.0f} s")
        else:
            self._timer = self._loop.call_later(left, self._look)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, why: str) -> None:
        self._why = why
        self.hang_up()
        self._wake()
