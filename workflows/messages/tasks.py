"""Drawing tasks for a burst's groups."""

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.burst import HarnessChoice, Purpose


class SelectTasks(Message):
    """Draw `count` tasks from a task set.

    Training walks a seeded permutation of the set, one epoch after the other, from `position` (tasks drawn so far in
    the run), so no task is skipped. An evaluation takes the first `count` in sorted order, the same every time.
    """

    run: str
    tasks: str
    split: str
    purpose: Purpose
    seed: int
    position: int = Field(ge=0)
    count: int = Field(ge=0)
    harness: HarnessChoice | None = Field(default=None, description="checked before anything is dispatched")


class SelectedTasks(Message):
    """Absolute task folders in order, and the position after them."""

    tasks: tuple[str, ...]
    position: int
