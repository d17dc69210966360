"""The one writer of the proxy's rows: a thread that commits whatever has gathered in one transaction.

Invariant: a write whose future is done is durable. Writes keep their order. Group commit keeps the cost of durability
per answer low when many answers end at once.

Handing work to the thread makes it run, and the interpreter runs one thread at a time: a write that nobody waits for is
therefore handed over with the next one somebody waits for, or a moment later, and never between a request and its first
token.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

log = logging.getLogger(__name__)

Write = Callable[[Connection], None]
_Item = tuple[Write, asyncio.Future[None] | None]
ATTEMPTS = 6
BACKOFF_SECONDS = 0.25
GROUP = 256
GATHER_SECONDS = 0.05
"""How long a write that nobody waits for may be kept back."""


class Recorder:
    """Writes to the run's database from one thread. All methods belong to one event loop; `post` and `close` also work
    without one."""

    def __init__(self, database: Engine) -> None:
        self._database = database
        self._gathered: list[_Item] = []
        self._timer: asyncio.TimerHandle | None = None
        self._queue: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def post(self, write: Write) -> None:
        """Queue a write that nobody waits for."""
        self._gathered.append((write, None))
        if self._timer is None:
            try:
                self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._hand_over)
            except RuntimeError:  # no loop runs: nothing would hand it over later
                self._hand_over()

    async def write(self, write: Write) -> None:
        """Queue a write and return when it is durable. Raises what the database raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gathered.append((write, done))
        self._hand_over()
        await done

    async def flush(self) -> None:
        """Return when everything queued so far is durable."""
        await self.write(lambda connection: None)

    def close(self) -> None:
        """Write what is queued and stop. May be called from another thread once the loop posts no more."""
        self._queue.put(self._gathered)
        self._queue.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def _work(self) -> None:
        running = True
        while running:
            writes: list[_Item] = []
            while running and (not writes or (len(writes) < GROUP and not self._queue.empty())):
                batch = self._queue.get()
                running = batch is not None
                writes += batch or ()
            if not writes:
                continue
            error = self._commit([write for write, _ in writes])
            if error is None or len(writes) == 1:
                self._settle([done for _, done in writes], error)
                continue
            for write, done in writes:  # one of them is at fault: the others must not suffer
                self._settle([done], self._commit([write]))

    def _commit(self, writes: Sequence[Write]) -> Exception | None:
        for attempt in range(ATTEMPTS):
            try:
                with self._database.begin() as connection:
                    for write in writes:
                        write(connection)
                return None
            except OperationalError as error:  # locked, or away: worth another try
                log.warning("database: attempt %d of %d failed: %s", attempt + 1, ATTEMPTS, error)
                failure: Exception = error
                time.sleep(BACKOFF_SECONDS * 2**attempt)
            except Exception as error:
                return error
        return failure

    @staticmethod
    def _settle(futures: Sequence["asyncio.Future[None] | None"], error: Exception | None) -> None:
        for future in futures:
            if future is None:
                if error is not None:
                    log.error("a record could not be written: %s", error)
                continue
            try:
                future.get_loop().call_soon_threadsafe(_resolve, future, error)
            except RuntimeError:  # the loop has closed: nobody waits any more
                log.warning("a record was written after its waiter had gone")


def _resolve(future: "asyncio.Future[None]", error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
