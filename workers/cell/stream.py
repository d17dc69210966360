"""The cell's ear on a batch's stream queue: a Temporal worker that lives as long as the cell serves that batch."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from workers.registration import BEAT_THROTTLE, interceptors
from workflows.messages import ids

DRAIN_SECONDS = 40.0


class BatchStream:
    """Serves at most one batch. `run_micro_step` is the activity; attach it before the first `open`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._activity: Callable[..., Any] | None = None
        self._serving: tuple[str, asyncio.Task[None], Worker] | None = None
        self._lock = asyncio.Lock()

    def attach(self, run_micro_step: Callable[..., Any]) -> None:
        self._activity = run_micro_step

    @property
    def batch(self) -> str | None:
        return self._serving[0] if self._serving else None

    async def open(self, batch: str, depth: int) -> None:
        """Serve the stream of `batch`, `depth` micro-steps at once; another batch's is closed first."""
        async with self._lock:
            if self._serving is not None and self._serving[0] == batch and not self._serving[1].done():
                return
            await self._close()
            if self._activity is None:
                raise RuntimeError("no activity is attached to the stream")
            worker = Worker(
                self._client,
                task_queue=ids.stream_queue(batch),
                activities=[self._activity],
                interceptors=interceptors(),
                max_concurrent_activities=depth,
                max_heartbeat_throttle_interval=BEAT_THROTTLE,
                graceful_shutdown_timeout=timedelta(seconds=DRAIN_SECONDS),
            )
            self._serving = (batch, asyncio.create_task(worker.run()), worker)

    async def close(self) -> None:
        """Stop claiming; what was claimed is finished first, within a bound."""
        async with self._lock:
            await self._close()

    async def _close(self) -> None:
        if self._serving is None:
            return
        _, task, worker = self._serving
        self._serving = None
        await worker.shutdown()
        await asyncio.gather(task, return_exceptions=True)
