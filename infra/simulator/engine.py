"""A rollout engine: executions that share it and slow each other down.

Progress is a fluid: an execution with model share m advances at 1 / (m * slow + 1 - m), where `slow` rises with the
engine's load. Executions of one share advance alike, so each share has one clock and a heap of the clock times at
which they end; a change of load moves no execution. That keeps a change at O(log n) however full the engine is.
"""

import heapq
from dataclasses import dataclass, field

Key = tuple[int, int]
"""An execution: (group, member)."""


@dataclass(slots=True, eq=False)
class _Lane:
    share: float
    clock: float = 0.0
    ends: list[tuple[float, Key]] = field(default_factory=list)


class Engine:
    """One engine. Times are the simulation's; work is in seconds on an idle engine."""

    def __init__(self, slots: int, slowdown: float) -> None:
        self.slots, self.slowdown = slots, slowdown
        self._now = 0.0
        self._lanes: dict[float, _Lane] = {}
        self._where: dict[Key, tuple[_Lane, float]] = {}
        self.busy_slot_seconds = 0.0

    @property
    def count(self) -> int:
        return len(self._where)

    @property
    def free(self) -> int:
        return self.slots - len(self._where)

    def add(self, now: float, key: Key, work: float, share: float) -> None:
        self._advance(now)
        lane = self._lanes.setdefault(share, _Lane(share))
        end = lane.clock + work
        heapq.heappush(lane.ends, (end, key))
        self._where[key] = (lane, end)

    def take(self, now: float, key: Key) -> tuple[float, float]:
        """Remove an execution; returns (work left, model share)."""
        self._advance(now)
        lane, end = self._where.pop(key)
        return max(0.0, end - lane.clock), lane.share

    def drain(self, now: float) -> list[tuple[Key, float, float]]:
        """Remove all, in a fixed order: (execution, work left, model share)."""
        return [(key, *self.take(now, key)) for key in sorted(self._where)]

    def next_end(self, now: float) -> float | None:
        """When the next execution ends if nothing changes."""
        self._advance(now)
        soonest = None
        for lane in self._lanes.values():
            while lane.ends and self._where.get(lane.ends[0][1]) != (lane, lane.ends[0][0]):
                heapq.heappop(lane.ends)
            if lane.ends:
                left = max(0.0, lane.ends[0][0] - lane.clock) / self._pace(lane)
                soonest = now + left if soonest is None else min(soonest, now + left)
        return soonest

    def ended(self, now: float) -> list[Key]:
        """Remove and return the executions whose work is done."""
        self._advance(now)
        done: list[Key] = []
        for lane in self._lanes.values():
            while lane.ends and lane.ends[0][0] <= lane.clock + 1e-6:
                end, key = heapq.heappop(lane.ends)
                if self._where.get(key) == (lane, end):
                    del self._where[key]
                    done.append(key)
        return done

    def _advance(self, now: float) -> None:
        passed = now - self._now
        if passed > 0:
            for lane in self._lanes.values():
                lane.clock += passed * self._pace(lane)
            self.busy_slot_seconds += passed * len(self._where)
        self._now = now

    def _pace(self, lane: _Lane) -> float:
        load = len(self._where) / self.slots
        slow = 1.0 + self.slowdown * min(load, 1.0)
        if load > 1.0:
            slow *= load
        return 1.0 / (lane.share * slow + 1.0 - lane.share)
