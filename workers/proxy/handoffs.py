"""Requests that wait until the KV of their execution has arrived at its new engine, bounded; then they recompute."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Expected:
    lease: str
    until: float
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Handoffs:
    def __init__(self) -> None:
        self._expected: dict[str, _Expected] = {}

    def expect(self, lease: str, executions: Iterable[str], seconds: float) -> None:
        """From now on requests of these executions wait for `done`, until `seconds` from now at most."""
        now = asyncio.get_running_loop().time()
        for execution in [name for name, expected in self._expected.items() if expected.until <= now]:
            del self._expected[execution]  # nobody has asked for it in time, and nobody waits
        until = now + seconds
        for execution in executions:
            known = self._expected.get(execution)
            if known is None or known.lease != lease:
                if known is not None:
                    known.settled.set()
                self._expected[execution] = _Expected(lease, until)

    def done(self, lease: str, executions: Iterable[str]) -> None:
        """Their KV has arrived or will not. Anything not expected under this lease is ignored."""
        for execution in executions:
            expected = self._expected.get(execution)
            if expected is not None and expected.lease == lease:
                expected.settled.set()
                del self._expected[execution]

    async def wait(self, execution: str) -> bool:
        """Wait if KV is expected; whether it did."""
        expected = self._expected.get(execution)
        if expected is None:
            return False
        left = expected.until - asyncio.get_running_loop().time()
        if left <= 0:
            del self._expected[execution]
            return False
        try:
            async with asyncio.timeout(left):
                await expected.settled.wait()
        except TimeoutError:
            if self._expected.get(execution) is expected:
                del self._expected[execution]
        return True
