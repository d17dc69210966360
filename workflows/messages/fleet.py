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


class CellSpec(Message):
    """One cell of the fleet file. Cell 0 is the core."""

    index: int = Field(ge=0)
    engine: str = Field(default="sglang", pattern=r"^(sglang|paced)$")
    slots: int = Field(default=8, ge=1, description="executions its engine may serve at once: C_e")
    kv_tokens: int = Field(default=16384, ge=1)
    trains: bool = True
    stages: int = Field(default=1, ge=1, description="pipeline stages of its trainer, a process each")


class CellWorkerUp(Message):
    """A cell worker has booted: signal to its Cell workflow. A higher boot epoch supersedes a lower one."""

    cell: int
    boot_epoch: int
    queue: str
    engine_url: str
    actor_url: str


class CellReport(Message):
    """Cell workflow to Scheduler: the cell's role has changed for good."""

    cell: int
    boot_epoch: int
    role: CellRole
    version: int | None = Field(default=None, description="version its engine serves, when in rollout")
    queue: str = ""
    move: str = Field(default="", description="id of the move that led here, if any")
    reason: str = ""
