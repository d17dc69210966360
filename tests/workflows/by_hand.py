"""A world whose executions are no workflows: a test closes them by hand, as many and as fast as it likes."""

import asyncio
from typing import Any

from temporalio import activity

from tests.workflows.world import FakeWorld
from workflows.messages import ids
from workflows.messages.control import CancelExecutions, LaunchExecutions
from workflows.messages.execution import EndReason, Evaluation, ExecutionClosed, ExecutionSpec, Outcome


class ByHand(FakeWorld):
    """`launched`: in order of launch. The sweep finds none of them gone: they were never started."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.launched: list[ExecutionSpec] = []

    @activity.defn(name="launch_executions")
    async def launch_executions(self, request: LaunchExecutions) -> None:
        self.launched += [spec for spec in request.executions if spec not in self.launched]

    @activity.defn(name="cancel_executions")
    async def cancel_executions(self, request: CancelExecutions) -> None:
        pass

    def report(self, spec: ExecutionSpec) -> ExecutionClosed:
        reward = self.reward(spec)
        name = ids.execution_id(spec.run, spec.burst, spec.group, spec.member)
        self.outcomes[name] = Evaluation(outcome=Outcome.SCORED, reward=reward)
        return ExecutionClosed(
            execution=name,
            burst=spec.burst,
            group=spec.group,
            member=spec.member,
            end=EndReason.SUBMITTED,
            outcome=Outcome.SCORED,
            reward=reward,
        )

    async def close_all(self, specs: list[ExecutionSpec], *, twice: bool = False, at_once: int = 32) -> None:
        """Report these executions, in bursts of `at_once` signals."""
        reports = [self.report(spec) for spec in specs for _ in range(2 if twice else 1)]
        for first in range(0, len(reports), at_once):
            chunk = reports[first : first + at_once]
            await asyncio.gather(*(self.scheduler.signal("execution_closed", report) for report in chunk))
