"""In which order held-back requests go on: a pure function of what is known about each."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """A request that waits. `completed_calls`: of its execution; `cached_tokens`: prefix an engine may hold."""

    call: str
    completed_calls: int
    cached_tokens: int
    since: float


def overdue(held: Held, now: float, oldest_first_seconds: float) -> bool:
    """Whether it has waited so long that it goes before all that have not."""
    return now - held.since >= oldest_first_seconds


def order(waiting: Sequence[Held], now: float, oldest_first_seconds: float) -> list[Held]:
    """First whoever waited longest beyond the limit; then executions that are furthest, warm prefixes, and age.

    An execution with many calls behind it is close to its end, and finishing executions is what frees cells.
    """

    def key(held: Held) -> tuple[float, ...]:
        if overdue(held, now, oldest_first_seconds):
            return (0, held.since)
        return (1, -held.completed_calls, -held.cached_tokens, held.since)

    return sorted(waiting, key=key)
