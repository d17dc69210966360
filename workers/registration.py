"""Workers register exactly the activities that the table of steps gives to their kind of queue."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.worker import Interceptor, Worker

from activities.heartbeats import HeartbeatInterceptor
from infra.temporal.failures import FailureInterceptor
from workflows.steps import Queue, steps_of

STEP_GRACE = timedelta(seconds=2)
"""How long steps that run when their worker is told to stop may go on before they are cancelled: all are retried."""
BEAT_THROTTLE = timedelta(seconds=2)
"""How long the SDK may keep a cell's heartbeat. By default it sends one in 0.8 of the time-out, 8 of 10 seconds: a
stall of 2 seconds would give the step out again. A cell has few steps at a time, so its beats cost little."""


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    """All of `workers`, running; they end at the same time."""
    async with AsyncExitStack() as held:
        for worker in workers:
            await held.enter_async_context(worker)
        try:
            yield
        finally:
            await asyncio.gather(*(worker.shutdown() for worker in workers))


def interceptors() -> list[Interceptor]:
    """What stands around every activity of every worker."""
    return [FailureInterceptor(), HeartbeatInterceptor()]


def activities_of(queue: Queue, *hosts: object) -> list[Callable[..., Any]]:
    """The activity methods of `hosts` that belong on `queue`.

    Raises RuntimeError when the table names a step that no host has: a workflow would wait for it for ever.
    """
    found: dict[str, Callable[..., Any]] = {}
    for host in hosts:
        for name in dir(host):
            method = getattr(host, name)
            definition = getattr(method, "__temporal_activity_definition", None)
            if definition is not None and definition.name:
                found[definition.name] = method
    wanted = steps_of(queue)
    missing = sorted(wanted - found.keys())
    if missing:
        raise RuntimeError(f"no activity for the steps {', '.join(missing)} of queue {queue.value}")
    return [found[name] for name in sorted(wanted)]


def names_of(methods: Sequence[Callable[..., Any]]) -> list[str]:
    """Registered names, for tests and logs."""
    return [str(activity._Definition.must_from_callable(method).name) for method in methods]
