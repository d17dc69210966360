"""What came out of one simulated variant."""

from dataclasses import dataclass, field

from workflows.messages.base import Message


class StepOutcome(Message):
    """One optimizer step; times in seconds since the start. `last_ready_at`: when its last group was complete.

    `exposed_seconds`: how long rollout had nothing to do with the wait for this update any more.
    """

    step: int
    opened_at: float
    last_ready_at: float
    committed_at: float
    staleness: float

    @property
    def exposed_seconds(self) -> float:
        return self.committed_at - max(self.last_ready_at, self.opened_at)


class Outcome(Message):
    """`seconds`: of the whole run. Shares are of cell-seconds in a role; `slack` of the time of a step.

    `staleness`: measured group-weighted mean, after the first quarter and without the last bursts, which do not carry
    over. `expected_staleness`: what the settings promise.
    """

    label: str
    policy: str
    seconds: float
    steps: tuple[StepOutcome, ...]
    executions: int
    timed_out: int
    mean_execution_seconds: float
    mean_query_seconds: float
    long_query_share: float
    staleness: float
    expected_staleness: float
    training_idle_share: float
    training_share: float
    rollout_idle_share: float
    exposed_share: float
    slack: float
    moves: int
    returns: int
    rerouted: int
    split: int

    @property
    def hours(self) -> float:
        return self.seconds / 3600


@dataclass
class Trace:
    """Raw material of pictures: (time, cell, role) at every change, (time, w, capacity) at every look.

    `spans`: launch and end of every execution, by group and member.
    """

    roles: list[tuple[float, int, str]] = field(default_factory=list)
    levels: list[tuple[float, int, int]] = field(default_factory=list)
    decisions: list[tuple[float, str, str]] = field(default_factory=list)


LONG_SECONDS = 4 * 3600.0
"""A query is long from here on (docs: 'queries at 4 h or more')."""
