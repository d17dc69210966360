"""Workflow code before and after a deploy: what a worker hosts in `test_deploys.py`.

Errand     does its work in two steps and waits in between; the new code checks something before the first
Tally      counts signals and continues as new on demand; the new code keeps its count in another layout
"""

from datetime import timedelta
from typing import Any, ClassVar

from temporalio import activity, workflow

from workflows.messages.carried import Carried, Upgrade
from workflows.patches import Patch

CHECK = Patch("errand-checks-first", "0.2", "an errand checks something before its first step")


@activity.defn
async def step(name: str) -> str:
    return name


async def do(name: str) -> str:
    return await workflow.execute_activity(step, name, activity_id=name, start_to_close_timeout=timedelta(seconds=30))


class _Errand:
    def __init__(self) -> None:
        self.go = False
        self.done: list[str] = []

    @workflow.signal
    def go_on(self) -> None:
        self.go = True

    async def work(self) -> list[str]:
        self.done.append(await do("first"))
        await workflow.wait_condition(lambda: self.go)
        self.done.append(await do("second"))
        return self.done


@workflow.defn(name="Errand")
class OldErrand(_Errand):
    """The code that was there when the run began."""

    @workflow.run
    async def run(self) -> list[str]:
        return await self.work()


@workflow.defn(name="Errand")
class NewErrand(_Errand):
    """The new code, as it should be deployed."""

    @workflow.run
    async def run(self) -> list[str]:
        if CHECK.applies():
            self.done.append(await do("check"))
        return await self.work()


@workflow.defn(name="Errand")
class LastErrand(_Errand):
    """Later still: no run of the old code is alive."""

    @workflow.run
    async def run(self) -> list[str]:
        CHECK.expire()
        self.done.append(await do("check"))
        return await self.work()


@workflow.defn(name="Errand")
class CarelessErrand(_Errand):
    """The new code without its patch."""

    @workflow.run
    async def run(self) -> list[str]:
        self.done.append(await do("check"))
        return await self.work()


class OldTally(Carried):
    """Format 1."""

    count: int = 0


def _by_hand(state: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in state.items() if key != "count"}, "by_hand": state["count"]}


class NewTally(Carried):
    """Format 2 tells counts apart by who counted."""

    upgrades: ClassVar[tuple[Upgrade, ...]] = (_by_hand,)
    format: int = 2
    by_hand: int = 0
    by_machine: int = 0


class _Counting:
    def __init__(self) -> None:
        self.added, self.rolls, self.over = 0, False, False

    @workflow.signal
    def count(self) -> None:
        self.added += 1

    @workflow.signal
    def roll_over(self) -> None:
        self.rolls = True

    @workflow.signal
    def end(self) -> None:
        self.over = True

    async def until_told(self) -> None:
        await workflow.wait_condition(lambda: self.rolls or self.over)


@workflow.defn(name="Tally")
class OldCounting(_Counting):
    """Reads and carries format 1."""

    @workflow.run
    async def run(self, state: OldTally) -> str:
        await self.until_told()
        total = state.count + self.added
        if self.rolls:
            workflow.continue_as_new(OldTally(count=total))
        return f"{total}"


@workflow.defn(name="Tally")
class NewCounting(_Counting):
    """Reads both, carries format 2."""

    @workflow.run
    async def run(self, state: NewTally) -> str:
        await self.until_told()
        machine = state.by_machine + self.added
        if self.rolls:
            workflow.continue_as_new(NewTally(by_hand=state.by_hand, by_machine=machine))
        return f"{state.by_hand} by hand, {machine} by machine"
