"""Sends a call's answer to one client, and notices whether that client was there to the end.

Headers go out early and silence is filled with what the dialect counts as life, so that no client gives up on a request
that merely waits; before a reply that is not streamed, white space is that, which every JSON reader skips. An answer
counts as delivered when its last byte was handed over to a connection that was still open. What is ready at once goes
out as one write.
"""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workers.proxy.call import CallError, LiveCall, ModelRequest
from workers.proxy.dialect import Dialect, wire
from workers.proxy.dialect.logprobs import Logprobs
from workers.proxy.settings import ProxySettings

_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

_SEND = "gyre.send"


def direct(app: ASGIApp) -> ASGIApp:
    """Lets a reply's pieces go around the layers of `app`, each of which would handle every one of them."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_SEND] = send
        await app(scope, receive, send)

    return served


class ClientGone(Exception):
    """The client hung up. Not a failure of anybody."""


class Reply:
    """An ASGI response. `heard` is called once, when the whole answer has been delivered."""

    def __init__(
        self,
        dialect: Dialect,
        call: LiveCall,
        request: ModelRequest,
        model: str,
        settings: ProxySettings,
        spell: Callable[[int], bytes],
        heard: Callable[[], None],
    ) -> None:
        self._dialect, self._call, self._request, self._model = dialect, call, request, model
        self._settings, self._logprobs, self._heard = settings, Logprobs(spell), heard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ear = _Ear()
        gone = asyncio.ensure_future(_watch(receive, ear))
        self._call.listen(ear.wake)
        try:
            if self._request.stream:
                await self._stream(send, scope.get(_SEND, send), ear)
            else:
                await self._whole(scope, receive, send, ear)
        except (ClientGone, OSError):
            return
        finally:
            self._call.unlisten(ear.wake)
            ear.close()
            gone.cancel()

    async def _whole(self, scope: Scope, receive: Receive, send: Send, ear: "_Ear") -> None:
        begun = False
        ear.tick_every(self._settings.whole_seconds)
        while not self._call.over:
            if not ear.silent():
                await ear.hear()
                continue
            if not begun:  # from here on the status is 200: a failure can only break the reply off
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self._whole_headers()})
                ear.tick_every(self._settings.keepalive_seconds)
            await _part(send, b" ")
        if self._call.error is not None:
            if not begun:
                await error_response(self._dialect, self._call.error)(scope, receive, send)
            return  # one that has begun is never ended: the server hangs up, which clients take for what it is
        body = wire.dumps(self._dialect.whole(self._call, self._request, self._model, self._logprobs))
        if not begun:
            length = (b"content-length", str(len(body)).encode())
            await send({"type": "http.response.start", "status": 200, "headers": [*self._whole_headers(), length]})
        await _part(send, body, last=True)
        self._heard()

    def _whole_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"content-type", b"application/json"), (b"x-request-id", self._call.call.encode())]

    async def _stream(self, send: Send, pieces: Send, ear: "_Ear") -> None:
        call = self._call
        # A short wait for the first text lets an early failure have its own status.
        ear.tick_every(self._settings.headers_seconds)
        while not (call.deltas or call.over or ear.silent()):
            await ear.hear()
        if call.error is not None and not call.has_shown:
            response = error_response(self._dialect, call.error)
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": bytes(response.body)})
            return
        headers = [*_STREAM_HEADERS, (b"x-request-id", call.call.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        writer = self._dialect.stream(call, self._request, self._model, self._logprobs)
        await _part(pieces, writer.first())
        ear.tick_every(self._settings.keepalive_seconds)
        sent = 0
        while True:
            if sent < len(call.deltas):
                events = call.take(sent)
                sent += len(events)
                if data := writer.more(events):
                    ear.spoke()
                    await _part(pieces, data)
            elif call.over:
                break
            elif ear.silent():
                await _part(pieces, writer.keep_alive)
            else:
                await ear.hear()
            if ear.gone:
                raise ClientGone
        if call.error is not None:
            await _part(pieces, writer.broken(call.error), last=True)
            return
        await _part(pieces, writer.last(), last=True)
        self._heard()


class _Ear:
    """Wakes a reply: for news of its call, for a client that hung up, or after a silence."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seconds, self._since = 0.0, 0.0
        self.gone = False

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def hear(self) -> None:
        """Wait for any of them. Raises ClientGone."""
        self._waiter = self._loop.create_future()
        if not self.gone:
            await self._waiter
        self._waiter = None
        if self.gone:
            raise ClientGone

    def leave(self) -> None:
        self.gone = True
        self.wake()

    def tick_every(self, seconds: float) -> None:
        """From now on a silence of `seconds` wakes. One timer per silence, not per piece of text."""
        self.close()
        self._seconds = seconds
        self.spoke()
        self._timer = self._loop.call_later(seconds, self._tick)

    def spoke(self) -> None:
        self._since = self._loop.time()

    def silent(self) -> bool:
        """Whether the silence is over its time; then the next one begins."""
        if self._loop.time() - self._since < self._seconds:
            return False
        self.spoke()
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        left = self._since + self._seconds - self._loop.time()
        self._timer = self._loop.call_later(left if left > 0 else self._seconds, self._tick)
        if left <= 0:
            self.wake()


def error_response(dialect: Dialect, error: CallError) -> Response:
    headers = {"retry-after": str(error.retry_after_seconds)} if error.retry_after_seconds else None
    body = wire.dumps(dialect.error_body(error))
    return Response(body, status_code=error.status, headers=headers, media_type="application/json")


async def read_body(request: Request, limit_bytes: int) -> bytes | None:
    """The body, or None if it is larger than the limit."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


async def _watch(receive: Receive, ear: _Ear) -> None:
    message: Message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()
    ear.leave()


async def _part(send: Send, data: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": not last})
