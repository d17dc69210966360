"""One optimizer step: the stream of micro-steps, the ledger of what counted, the update."""

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.burst import BurstSpec, StepReport, Training
from workflows.messages.group import MicroStep
from workflows.messages.loss import LossSettings
from workflows.messages.scheduling import Weights

Figures = dict[str, float | dict[str, float]]
"""Measured numbers by name; a histogram is a number per bin."""


class BatchSpec(Message):
    """Start of a TrainingBatch; all its gradients come from `weights`."""

    spec: BurstSpec
    step: int
    batch: str
    weights: Weights
    counters: dict[str, int] = {}


class JoinBatch(Message):
    """A training cell joins: weights of exactly this version, fresh gradients, then it serves the stream.

    `core`: the cell that leads the batch. It holds the optimizer that goes with these weights, too.
    """

    run: str
    cell: int
    batch: str
    weights: Weights
    in_flight_depth: int
    core: int = 0


class MicroStepTask(Message):
    """One micro-step on the stream. `emission` counts how often the workflow put it there."""

    micro_step: MicroStep
    emission: int
    weights: Weights
    loss: LossSettings
    temperature: float


class Accepted(Message):
    """One micro-step that counted: (index, attempt) as accumulated by one boot of one cell."""

    index: int
    attempt: int
    cell: int
    boot_epoch: int


class MicroStepDone(Message):
    """Result of a micro-step activity."""

    accepted: Accepted
    loss: float
    metrics: Figures = {}


class SealBatch(Message):
    """Stop serving the stream and report what was really accumulated."""

    run: str
    cell: int
    batch: str


class Sealed(Message):
    """A participant's own account of its gradient."""

    cell: int
    boot_epoch: int
    accumulated: tuple[tuple[int, int], ...] = Field(description="(index, attempt), sorted")
    weights: Weights
    metrics: Figures = {}


class CombineUpdate(Message):
    """At the core: read the participants' gradients, divide once by `normalizer`, clip, update, make it durable."""

    run: str
    batch: str
    weights: Weights
    participants: tuple[Sealed, ...]
    normalizer: int = Field(ge=1, description="V: valid executions of groups with signal")
    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    counters: dict[str, int] = Field(description="saved with the checkpoint: sample position and counters")
    groups: tuple[str, ...] = Field(default=(), description="saved with the checkpoint, in order of admission")


class UpdateApplied(Message):
    """The update is durable as a checkpoint, not yet committed."""

    weights: Weights
    checkpoint: str
    grad_norm: float
    gradient_checksum: str = ""
    metrics: Figures = {}


class CommitBatch(Message):
    """Record a batch as committed: the update row (if any) and what counted."""

    run: str
    batch: str
    burst: str
    step: int
    before: Weights
    after: Weights
    checkpoint: str = ""
    groups: tuple[str, ...]
    accepted: tuple[Accepted, ...]
    normalizer: int
    gradient_checksum: str = Field(default="", description="of the gradient as it was applied; empty: no update")
    metrics: Figures = {}


class BatchOutcome(Message):
    """The result of a TrainingBatch."""

    report: StepReport
    weights: Weights


class OpenedBatch(Message):
    """Record a batch as opened, with all that its gradient depends on."""

    run: str
    batch: str
    burst: str
    step: int
    weights: Weights
    training: Training = Training()


class ReleaseBatch(Message):
    """After the commit: gradients may go. `discard`: they did not count."""

    run: str
    cell: int
    batch: str
    discard: bool = False
