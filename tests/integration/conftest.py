"""Stacks for integration tests: real components, started once per module."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from infra.temporal.client import ask
from workers.cli import cells
from workers.supervisor import LocalStack
from workflows.messages import ids
from workflows.messages.burst import BurstSpec
from workflows.policy.state import PolicyState

WAIT_SECONDS = 300.0
"""Until something that has to happen counts as not happening, on however busy a machine."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person would be told after seconds may take longer on a busy machine."""
    monkeypatch.setattr(cells, "_CONNECT_SECONDS", WAIT_SECONDS)


class Run:
    """A running stack, as tests talk to it."""

    def __init__(self, stack: LocalStack) -> None:
        self.stack = stack
        self.client: Client = stack.client
        self.name = stack.manifest.run

    async def start(self, spec: BurstSpec):
        """Start a burst as a user would."""
        return await self.client.start_workflow(
            "Burst", spec, id=ids.burst_id(spec.run, spec.name), task_queue=ids.WORKFLOW_QUEUE
        )

    async def scheduler(self) -> dict[str, Any]:
        return await ask(self.client.get_workflow_handle(ids.scheduler_id(self.name)), "state", dict)

    async def policy(self) -> PolicyState:
        handle = self.client.get_workflow_handle(ids.scheduler_id(self.name))
        return await ask(handle, "policy_state", PolicyState)

    async def until(
        self, condition: Callable[[PolicyState], bool | Awaitable[bool]], what: str, *, seconds: float = WAIT_SECONDS
    ) -> PolicyState:
        """Wait for a state of the run, as the policy sees it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                state = await asyncio.wait_for(self.policy(), 60)
            except Exception:
                # The control worker may be the one that was killed: only the deadline decides.
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.3)
                continue
            found = condition(state)
            if found if isinstance(found, bool) else await found:
                return state
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds:g} s: {what}; last seen {state}")
            await asyncio.sleep(0.2)

    async def caught(
        self, handle: WorkflowHandle[Any, Any], condition: Callable[[PolicyState], bool | Awaitable[bool]]
    ) -> bool:
        """Wait for a state of the run while a burst goes on. False if that burst was over before anybody saw it."""
        over, seen = asyncio.ensure_future(handle.result()), False

        async def seen_or_over(state: PolicyState) -> bool:
            nonlocal seen
            found = condition(state)
            seen = found if isinstance(found, bool) else await found
            return seen or over.done()

        try:
            await self.until(seen_or_over, "a state within a burst, or its end")
            return seen
        finally:
            over.cancel()
            await asyncio.gather(over, return_exceptions=True)

    async def rested(self) -> PolicyState:
        """All cells serve and nothing runs."""
        return await self.until(
            lambda state: state.waterlevel == 0 and all(cell.serving for cell in state.cells), "all cells serving"
        )
