"""What the long-lived workflows tell each other: signals with an id, answered by a signal."""

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.burst import BurstSpec
from workflows.messages.fleet import CellSpec
from workflows.messages.policies import Bounds, PolicySettings


class Weights(Message):
    """One weight version and the checksum its tensors must have."""

    version: int = Field(ge=0)
    checksum: str


class RunSpec(Message):
    """Start of a Scheduler: the run and its cells. Started once, by the control worker."""

    run: str
    cells: tuple[CellSpec, ...]
    weights: Weights
    kv_handoff: bool = True
    sweep_seconds: float = Field(default=20, gt=0)
    bounds: Bounds = Bounds()
    max_cells: int = Field(default=64, ge=1, description="how large offers may make the run")
    harness_slots: int = Field(default=0, ge=0, description="harnesses at once; 0: not the scheduler's to share out")
    evaluator_slots: int = Field(default=0, ge=0, description="graders at once; 0: as above")
    reboots: bool = Field(default=False, description="of cells that are offered: see CellState")


class OpenCell(Message):
    """Start the workflow of a cell that has joined the run; its start is this (`workflows.cell.CellState`)."""

    run: str
    spec: CellSpec
    weights: Weights
    reboots: bool = False


class OpenBurst(Message):
    """Burst to Scheduler: please dispatch. Answered by `BurstOpened` once it is this burst's turn.

    `run_id` tells a burst from an earlier one that was started under the same name.
    """

    spec: BurstSpec
    run_id: str = ""


class BurstOpened(Message):
    """Scheduler to Burst: the boundary's top-up is dispatched."""

    burst: str
    weights: Weights
    groups: int = Field(description="dispatched now")
    outstanding: int = Field(description="groups outstanding after the top-up")
    counters: dict[str, int] = Field(default={}, description="counters and sample positions, for the checkpoints")


class BurstRefused(Message):
    """Scheduler to Burst: its tasks cannot be used; the burst fails with this reason."""

    burst: str
    reason: str


class EvaluationDone(Message):
    """Scheduler to Burst: every execution of the evaluation is closed."""

    burst: str
    executions: int
    valid: int
    mean_reward: float | None


class OpenBatch(Message):
    """TrainingBatch to Scheduler: groups and members, please."""

    batch: str
    burst: str
    groups: int = Field(description="B")
    refill: bool
    policy: PolicySettings
    later_groups: int = Field(default=0, ge=0, description="groups of the burst's later steps")
    seed: int = 0


class Member(Message):
    """A cell in training, in one boot of its worker. `core` leads the batch; `change` rises with every hand-over."""

    cell: int
    boot_epoch: int
    queue: str
    core: int = 0
    change: int = 0


class GroupAssigned(Message):
    """TrainingBatch to Scheduler: the first micro-step of this group was claimed (or it has none)."""

    batch: str
    group: str


class BatchClosed(Message):
    """TrainingBatch to Scheduler: its update is committed (or there was none to make)."""

    batch: str
    weights: Weights
    busy_seconds: float = Field(default=0.0, ge=0, description="cells computed what counted, all of them together")


class BatchAbandoned(Message):
    """TrainingBatch to Scheduler: nothing of it counts; its groups are free again."""

    batch: str


class EndBurst(Message):
    """Burst to Scheduler: the last batch is closed; satellites return, the version is published."""

    burst: str
    weights: Weights


class BurstPublished(Message):
    """Scheduler to Burst: every cell that serves has verified the version; `not_serving` names the others and why."""

    burst: str
    weights: Weights
    serving: tuple[int, ...]
    not_serving: dict[int, str] = {}


class CancelBurst(Message):
    """Burst to Scheduler: stop dispatching it, close what is queued, cancel what runs."""

    burst: str


class BurstDrained(Message):
    """Scheduler to Burst: every execution of a cancelled burst is closed."""

    burst: str
