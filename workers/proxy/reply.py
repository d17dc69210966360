"""Sends a call's answer to one client, and notices whether that client was there to the end.

Headers go out early and silence is filled with comments, so that no client gives up on a request that merely waits. An
answer counts as delivered when its last byte was handed over to a connection that was still open.
"""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from workers.proxy.call import CallError, LiveCall, ModelRequest
from workers.proxy.dialect import chat
from workers.proxy.settings import ProxySettings


class ClientGone(Exception):
    """The client hung up. Not a failure of anybody."""


class ChatReply:
    """An ASGI response. `heard` is called once, when the whole answer has been delivered."""

    def __init__(
        self, call: LiveCall, request: ModelRequest, model: str, settings: ProxySettings, heard: Callable[[], None]
    ) -> None:
        self._call, self._request, self._model = call, request, model
        self._settings, self._heard = settings, heard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            if self._request.stream:
                await self._stream(send, gone)
            else:
                await self._whole(scope, receive, send, gone)
        except (ClientGone, OSError):
            return
        finally:
            gone.cancel()

    async def _whole(self, scope: Scope, receive: Receive, send: Send, gone: "asyncio.Future[None]") -> None:
        while not self._call.over:
            await self._more(len(self._call.deltas), None, gone)
        if self._call.error is not None:
            await error_response(self._call.error)(scope, receive, send)
            return
        _check(gone)
        await JSONResponse(chat.answer(self._call, self._model))(scope, receive, send)
        self._heard()

    async def _stream(self, send: Send, gone: "asyncio.Future[None]") -> None:
        # A short wait for the first text lets an early failure have its own status.
        await self._more(0, self._settings.headers_seconds, gone)
        if self._call.error is not None and not self._call.deltas:
            response = error_response(self._call.error)
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": bytes(response.body)})
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _part(send, chat.first_event(self._call, self._model))
        sent = 0
        while True:
            if sent < len(self._call.deltas):
                text = "".join(self._call.deltas[sent:])
                sent = len(self._call.deltas)
                await _part(send, chat.text_event(self._call, self._model, text))
            elif self._call.over:
                break
            elif not await self._more(sent, self._settings.keepalive_seconds, gone):
                await _part(send, chat.KEEP_ALIVE)
            _check(gone)
        if self._call.error is not None:
            await _part(send, chat.error_event(self._call.error), last=True)
            return
        _check(gone)
        last = chat.last_events(self._call, self._model, self._request.include_usage)
        await _part(send, last, last=True)
        self._heard()

    async def _more(self, heard: int, seconds: float | None, gone: "asyncio.Future[None]") -> bool:
        more = asyncio.ensure_future(self._call.more(heard, seconds))
        try:
            await asyncio.wait({more, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not more.done():
                raise ClientGone
            return more.result()
        finally:
            more.cancel()


def error_response(error: CallError) -> JSONResponse:
    headers = {"retry-after": str(error.retry_after_seconds)} if error.retry_after_seconds else None
    return JSONResponse(chat.error_body(error), status_code=error.status, headers=headers)


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


def _check(gone: "asyncio.Future[None]") -> None:
    if gone.done():
        raise ClientGone


async def _disconnected(receive: Receive) -> None:
    message: Message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()


async def _part(send: Send, data: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": not last})
