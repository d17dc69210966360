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
    """An activity that never beats by itself and works until `ends`, or for a few turns of the loop."""

    def __init__(self, ends: asyncio.Event | None = None) -> None:
        self._ends = ends

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if self._ends is not None:
            await self._ends.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        return "done"


def environment_with(heartbeat: timedelta | None) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_timeout=heartbeat)
    return environment


async def test_a_silent_activity_beats_if_its_step_asks_for_it():
    environment, heard = environment_with(timedelta(milliseconds=30)), asyncio.Event()
    environment.on_heartbeat = lambda *details: heard.set()
    chain = HeartbeatInterceptor().intercept_activity(Silent(ends=heard))
    assert await environment.run(chain.execute_activity, None) == "done"


@pytest.mark.parametrize("heartbeat", [timedelta(hours=1), None])
async def test_one_that_ends_before_its_first_beat_is_due_costs_none(heartbeat: timedelta | None):
    environment, heard = environment_with(heartbeat), list[Any]()
    environment.on_heartbeat = lambda *details: heard.append(details)
    chain = HeartbeatInterceptor().intercept_activity(Silent())
    assert await environment.run(chain.execute_activity, None) == "done"
    assert heard == []


def test_no_step_waits_for_its_own_limit_when_a_worker_has_lost_it():
    assert [step.name for step in STEPS if not 0 < step.heartbeat <= 20] == []
