"""What goes wrong in a test's world: which step, when, how often, and how."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity

from workflows.messages.errors import GyreError


@dataclass
class Fault:
    """One planned misbehaviour of a step.

    `error`: raised. `hang`: never answers and sends no heartbeat, as a dead process. `delay_seconds`: late.
    `until`: held, alive, until this holds: what has to come first in a test is waited for, not guessed in seconds.
    `after`: the step does its work first and then fails. `times`: how often; None for ever.
    """

    step: str
    error: GyreError | None = None
    hang: bool = False
    delay_seconds: float = 0.0
    until: Callable[[], Any] = lambda: True
    after: bool = False
    times: int | None = 1
    when: Callable[[Any], bool] = lambda argument: True
    hits: int = field(default=0, init=False)

    def takes(self, step: str, argument: Any) -> bool:
        left = self.times is None or self.hits < self.times
        return left and step == self.step and self.when(argument)


@dataclass
class Faults:
    """The plan of a world, and what ends the hangs when it closes."""

    plan: list[Fault] = field(default_factory=list)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, step: str, **fault: Any) -> Fault:
        self.plan.append(Fault(step, **fault))
        return self.plan[-1]

    def clear(self) -> None:
        self.plan.clear()

    async def before(self, step: str, argument: Any) -> Fault | None:
        """Misbehave before the step works; returns the fault when it has its turn afterwards."""
        for fault in self.plan:
            if fault.takes(step, argument):
                fault.hits += 1
                await self.delay(fault)
                if not fault.after:
                    await self.strike(fault)
                return fault
        return None

    async def delay(self, fault: Fault) -> None:
        """As a living worker that is slow: it beats. A world that closes waits for nothing any more."""
        end = time.monotonic() + fault.delay_seconds
        while not self.closing.is_set() and (time.monotonic() < end or not fault.until()):
            activity.heartbeat()
            await asyncio.sleep(min(0.2, max(0.05, end - time.monotonic())))

    async def strike(self, fault: Fault) -> None:
        if fault.hang:
            await self.hang()
        if fault.error is not None:
            raise fault.error

    async def hang(self) -> None:
        """As a dead process: no heartbeat, no answer, until the test is over."""
        await self.closing.wait()
        raise asyncio.CancelledError


def step(work: Callable[..., Any]) -> Callable[..., Any]:
    """An activity of this name whose double, which has a method `perform`, does `work` in its own frame."""
    name = work.__name__

    async def run(self: Any, argument: Any) -> Any:
        return await self.perform(name, work, argument)

    kinds = dict(work.__annotations__)
    run.__name__ = run.__qualname__ = name
    run.__annotations__ = {"return": kinds.pop("return"), "argument": next(iter(kinds.values()))}
    return activity.defn(name=name)(run)
