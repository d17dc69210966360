"""Cells: what they are, what they report."""

from enum import StrEnum

from pydantic import Field

from workflows.messages.base import Message


class CellRole(StrEnum):
    """Where a cell is in its life; `workflows.policy.roles` holds the table of allowed changes."""

    STARTING = "starting"
    ROLLOUT = "rollout"
    TO_TRAINING = "to_training"
    TRAINING = "training"
    TO_ROLLOUT = "to_rollout"
    PARKED = "parked"
    LOST = "lost"
    RETIRING = "retiring"
    RETIRED = "retired"


class CellSpec(Message):
    """One cell of the fleet file. Cell 0 begins as the core."""

    index: int = Field(ge=0)
    engine: str = Field(default="sglang", pattern=r"^(sglang|paced)$")
    slots: int = Field(default=8, ge=1, description="executions its engine may serve at once: C_e")
    kv_tokens: int = Field(default=16384, ge=1)
    trains: bool = True
    stages: int = Field(default=1, ge=1, description="pipeline stages of its trainer, a process each")
    replicas: int = Field(default=1, ge=1, description="copies of the model its trainer computes with, all its stages")


class OfferCell(Message):
    """From outside to the Scheduler: this cell may join the run. Offering it again changes nothing."""

    cell: CellSpec


class ReclaimCell(Message):
    """From outside to the Scheduler: give this cell back, at the latest in `deadline_seconds`. May be repeated."""

    cell: int = Field(ge=0)
    deadline_seconds: float = Field(default=300.0, ge=0)


class MoveCost(Message):
    """Measured role changes of one kind; newer ones count more."""

    count: int = 0
    mean_seconds: float = 0.0


class Elasticity(Message):
    """What a run can give and take, and what that costs it: for whoever shares cells out between runs.

    `leaving`: cell -> when it has to be gone at the latest (seconds since the epoch); `late`: those of them that
    are not gone at their deadline, and what they hang at. `reclaimable`: cells that a reclaim would take now;
    `min_cells`, `max_cells`: how small and how large the run may become.
    """

    cells: tuple[CellSpec, ...]
    leaving: dict[int, float] = {}
    late: dict[int, str] = {}
    reclaimable: tuple[int, ...] = ()
    min_cells: int
    max_cells: int
    next_index: int
    core: int = Field(default=0, description="the cell that holds the optimizer")
    costs: dict[str, MoveCost] = Field(default={}, description="direction of a move -> what it took")


class CellWorkerUp(Message):
    """A cell worker has booted: signal to its Cell workflow. A higher boot epoch supersedes a lower one."""

    cell: int
    boot_epoch: int
    queue: str
    engine_url: str
    actor_url: str


COULD_NOT_LEAVE = "could not leave the fleet"
"""How the reason begins in the report of a cell that was to leave, failed, and serves again."""
COULD_NOT_TAKE_OVER = "could not take over as the core"
"""As above, of a cell that was to become the core; it goes on with what it did."""


REBOOTS = "reboots"
"""As above, of a cell whose role change failed for good and whose worker begins its next boot for that."""


class CellReport(Message):
    """Cell workflow to Scheduler: the cell's role has changed for good."""

    cell: int
    boot_epoch: int
    role: CellRole
    version: int | None = Field(default=None, description="version its engine serves, when in rollout")
    queue: str = ""
    move: str = Field(default="", description="id of the move that led here, if any")
    reason: str = ""
