"""Every activity beats while its worker lives, whatever it does."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.heartbeats import HeartbeatInterceptor
from workflows.steps import STEPS


class Silent(ActivityInboundInterceptor):
    """An activity that works for a while and never beats by itself."""

    def __init__(self) -> None: ...

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        await asyncio.sleep(0.05)
        return "done"


@pytest.mark.parametrize(("timeout", "beats"), [(timedelta(seconds=15), True), (None, False)])
async def test_a_silent_activity_beats_if_its_step_asks_for_it(timeout: timedelta | None, beats: bool):
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_timeout=timeout)
    heard: list[Any] = []
    environment.on_heartbeat = lambda *details: heard.append(details)
    chain = HeartbeatInterceptor().intercept_activity(Silent())
    assert await environment.run(chain.execute_activity, None) == "done"
    assert bool(heard) is beats


def test_no_step_waits_for_its_own_limit_when_a_worker_has_lost_it():
    assert [step.name for step in STEPS if not 0 < step.heartbeat <= 20] == []
