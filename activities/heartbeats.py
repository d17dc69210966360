"""Heartbeats of activities: often enough for their time-out, and what a cancellation means.

Every activity beats while its worker lives (`HeartbeatInterceptor`), so a task that was handed to a worker and lost on
the way, or whose worker died, is given out again after the heartbeat time-out and not after the much longer limit of
the step. Cancel, pause and reset reach an activity only through its heartbeats.
"""

import asyncio
import time
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


class Heartbeat:
    """Call it as often as you like inside an activity: it beats at a third of the heartbeat time-out.

    Nor does it beat before a third has passed: Temporal counts from the start of the attempt, each beat is a write in
    its database, and most steps have ended by then.
    """

    def __init__(self) -> None:
        timeout = activity.info().heartbeat_timeout
        self.period_seconds = timeout.total_seconds() / 3 if timeout else 10.0
        self._next = time.monotonic() + self.period_seconds

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.period_seconds
            activity.heartbeat()

    def must_stop(self) -> bool:
        """Whether the activity was cancelled on purpose.

        A worker that shuts down, a pause, a reset or a superseded attempt also cancels the coroutine, but then
        another attempt takes over what runs outside it.
        """
        details = activity.cancellation_details()
        return details is not None and details.cancel_requested


class HeartbeatInterceptor(Interceptor):
    """Give it to every Worker that hosts activities."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Beating(next)


class _Beating(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if activity.info().heartbeat_timeout is None:
            return await self.next.execute_activity(input)
        beats = asyncio.create_task(_beats(Heartbeat()))
        try:
            return await self.next.execute_activity(input)
        finally:
            beats.cancel()


async def _beats(beat: Heartbeat) -> None:
    while True:
        await asyncio.sleep(beat.period_seconds)
        beat()
