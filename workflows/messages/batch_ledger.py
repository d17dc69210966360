"""A batch's books at the moment of its update: what the update was made of, bound into its checkpoint."""

from pydantic import Field

from workflows.messages.base import Message


class LedgerEntry(Message):
    """One micro-step in the gradient: the attempt that counted, and the cell that accumulated it, in which boot."""

    micro_step: int = Field(ge=0)
    attempt: int = Field(ge=1)
    cell: int = Field(ge=0)
    boot_epoch: int = Field(ge=0)


class BatchLedger(Message):
    """Written while the batch is still open: it counts once the batch has recorded the same."""

    batch: str
    version_before: int = Field(ge=0)
    groups: tuple[str, ...] = Field(default=(), description="in their durable order of admission")
    micro_steps: tuple[LedgerEntry, ...] = Field(description="by index, each once")
    valid_executions: int = Field(ge=0, description="V: what the summed gradient was divided by")
    gradient_norm: float = Field(ge=0, description="before clipping")
    gradient_checksum: str = Field(description="sha256 of the combined fp32 gradient as it was applied")
