"""A world in which time is free: a loop whose clock jumps to the next timer, and ASGI applications called in it.

Nothing sleeps, nothing opens a socket, no thread runs: an hour of waiting costs what its events cost, and one seed
always gives the same run.
"""

import asyncio
import contextlib
import selectors
from collections.abc import AsyncIterator, Callable

import httpx2

from infra.engine.streams import StreamBroken


class _Jumping(selectors.DefaultSelector):
    """Never sleeps: whoever would wait finds that the time has passed."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        if timeout is not None and timeout > 0:
            self.now += timeout
        elif timeout is None:
            raise RuntimeError("nothing is left to happen: the run is stuck")
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now

    def run_in_executor(self, executor, func, *args):
        """At once, in the loop: a thread would lag behind the clock."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(work):
    """Run a coroutine to its end in a loop of its own; tasks it has left are an error."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(work)
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        return result, left
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class InlineRecorder:
    """The recorder's promise kept the simple way: every write is committed before the next thing happens."""

    def __init__(self, database, *_, **__):
        self._database = database

    def post(self, write):
        with self._database.begin() as connection:
            write(connection)

    async def write(self, write):
        self.post(write)
        await asyncio.sleep(0.002)

    async def flush(self):
        await asyncio.sleep(0)

    def close(self):
        pass


class Wire(httpx2.AsyncBaseTransport):
    """Calls an ASGI application and streams its answer; the line can be cut and is slow where `lag` says so."""

    def __init__(self, app, lag: Callable[[str], float] = lambda path: 0.0):
        self._app, self._lag = app, lag
        self.up = True
        self._open: set[_Body] = set()

    def cut(self):
        """As if the process had died: what is open breaks, nothing new gets through."""
        self.up = False
        for body in list(self._open):
            body.breaks()

    async def handle_async_request(self, request):
        content = await request.aread()
        await asyncio.sleep(self._lag(request.url.path))
        if not self.up:
            raise httpx2.ConnectError("connection refused", request=request)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        body = _Body(self._app, scope, content, request)
        self._open.add(body)
        body.task.add_done_callback(lambda _: self._open.discard(body))
        try:
            await body.begun.wait()
        except asyncio.CancelledError:
            await body.aclose()
            raise
        if body.status is None:
            raise httpx2.ReadError("the connection broke", request=request)
        return httpx2.Response(body.status, headers=body.headers, stream=body, request=request)


class WireStreams:
    """Streams of an engine client over a wire."""

    def __init__(self, wire):
        self._client = httpx2.AsyncClient(transport=wire, base_url="http://engine", timeout=None)

    @contextlib.asynccontextmanager
    async def post(self, path, content):
        try:
            async with self._client.stream("POST", path, content=content) as response:
                yield _Answer(response)
        except httpx2.HTTPError as error:
            raise StreamBroken(str(error)) from error

    async def close(self):
        await self._client.aclose()


class _Answer:
    def __init__(self, response):
        self._response, self.status = response, response.status_code
        self.retry_after = response.headers.get("retry-after")

    async def parts(self):
        async for part in self._response.aiter_raw():
            yield part


class _Body(httpx2.AsyncByteStream):
    """One request: the application runs in a task, its answer is read from here."""

    def __init__(self, app, scope, content, request):
        self._content, self._request = [content], request
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._broken = False
        self.begun = asyncio.Event()
        self.status, self.headers = None, []
        self.task = asyncio.ensure_future(self._serve(app, scope))

    async def _serve(self, app, scope):
        try:
            with contextlib.suppress(OSError):  # of a client that has gone
                await app(scope, self._receive, self._send)
        except asyncio.CancelledError:
            self._broken = True
        finally:
            self._parts.put_nowait(None)
            self.begun.set()

    async def _receive(self):
        if self._content:
            return {"type": "http.request", "body": self._content.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if self._gone.is_set():
            raise OSError("the client is gone")
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message.get("headers", [])
            self.begun.set()
        elif message.get("body"):
            self._parts.put_nowait(message["body"])

    def breaks(self):
        self._broken = True
        self.task.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            part = await self._parts.get()
            if part is None:
                if self._broken:
                    raise httpx2.ReadError("the connection broke", request=self._request)
                return
            yield part

    async def aclose(self):
        self._gone.set()
