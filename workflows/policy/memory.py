"""What a policy remembers between two looks. The Scheduler carries it; a policy reads and replaces it."""

from workflows.messages.base import Message
from workflows.policy.calibration import Calibration
from workflows.policy.component import Component
from workflows.policy.state import Hold


class Memory(Message):
    """`hold`: supply seen without a break. `low_since`: component -> since when it has been a donor without a break.

    `calibrations`: component -> its throughput model. `moved_at`: the last move that was planned by prediction.
    """

    hold: Hold | None = None
    low_since: dict[Component, float] = {}
    calibrations: dict[Component, Calibration] = {}
    moved_at: float | None = None
