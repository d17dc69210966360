"""Ends the wait for an engine's next words for every reason but the words themselves."""

import asyncio

from workers.proxy.aborts import Aborts
from workers.proxy.engine_record import EngineRecord
from workers.proxy.segment import Segment
from workers.proxy.settings import ProxySettings


class Watch:
    """Interrupts the task inside `limit` when the engine is lost or silent, or has not ended a cut request in time.

    `why` then says so; it is empty where the cut was the reason. Costs nothing per chunk but `heard`.
    """

    def __init__(
        self,
        settings: ProxySettings,
        record: EngineRecord,
        segment: Segment,
        aborts: Aborts,
        limit: asyncio.Timeout,
    ) -> None:
        self._settings, self._record, self._segment = settings, record, segment
        self._aborts, self._limit = aborts, limit
        self._loop = asyncio.get_running_loop()
        self._heard_at, self._allowed = self._loop.time(), settings.first_token_seconds
        self._grace: asyncio.TimerHandle | None = None
        self._timer = self._loop.call_later(min(self._allowed, settings.next_token_seconds), self._look)
        self.why = ""
        segment.listener = self._signal
        if segment.is_cut or segment.is_lost:
            self._signal()

    def heard(self) -> None:
        """The engine said something."""
        self._heard_at, self._allowed = self._loop.time(), self._settings.next_token_seconds

    def close(self) -> None:
        self._segment.listener = None
        self._timer.cancel()
        if self._grace is not None:
            self._grace.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        left = max(self._heard_at, self._record.opened_at) + self._allowed - now
        # Behind a closed door silence is a pause, and whoever closed it bounds it.
        if left <= 0 and self._record.door_open and self._grace is None:
            self._interrupt(f"silent for {self._allowed:.0f} s")
        else:
            # A first token allows less from then on, so it is looked at no later than that.
            wait = min(left, self._settings.next_token_seconds) if left > 0 else self._settings.next_token_seconds
            self._timer = self._loop.call_later(max(wait, 0.001), self._look)

    def _signal(self) -> None:
        if self._segment.is_lost:
            self._interrupt("the engine was lost")
        elif self._grace is None:
            self._aborts.end(self._record, self._segment)
            self._grace = self._loop.call_later(self._settings.abort_grace_seconds, self._interrupt, "")

    def _interrupt(self, why: str) -> None:
        self.why = why
        self._limit.reschedule(self._loop.time())
