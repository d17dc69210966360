"""Role changes: what a Cell asks of a RoleTransition, and what it reports step by step."""

from enum import StrEnum

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.burst import PublishMode
from workflows.messages.fleet import CellSpec
from workflows.messages.scheduling import Weights


class Direction(StrEnum):
    """What a transition does to its cell."""

    BOOT = "boot"
    TO_TRAINING = "to_training"
    TO_ROLLOUT = "to_rollout"
    PUBLISH = "publish"
    RETIRE = "retire"
    TAKE_OVER = "take_over"


class MoveCell(Message):
    """Scheduler to Cell: change role or serve a new version. `move` makes it idempotent.

    A change of role is meant for the boot that the Scheduler knew; any other ignores it.
    """

    move: str
    boot_epoch: int = 0
    direction: Direction
    weights: Weights
    peers: dict[str, str] = Field(default={}, description="engine id -> activity queue of the cells that may take over")
    kv_handoff: bool = True
    publish: PublishMode = "recompute"
    leaves_at: float | None = Field(default=None, description="to retire: when it has to be gone, s since the epoch")
    committed: Weights | None = Field(default=None, description="to take over as the core: what it must hold")
    led: bool = Field(default=False, description="to retire: it was the core before")


class TransitionSpec(Message):
    """Start of a RoleTransition. `lease` rises with every transition of a cell and fences the steps of older ones."""

    run: str
    cell: CellSpec
    lease: int
    boot_epoch: int
    queue: str
    engine_url: str
    direction: Direction
    weights: Weights
    peers: dict[str, str] = {}
    kv_handoff: bool = True
    publish: PublishMode = "recompute"
    trains: bool = Field(default=False, description="the cell is in training when it retires")
    leaves_at: float | None = Field(default=None, description="when it retires: gone by then, whatever fails")
    may_reboot: bool = Field(default=False, description="where it would park: end this boot, the next one serves")
    committed: Weights | None = Field(default=None, description="when it takes over as the core: what it must hold")
    led: bool = Field(default=False, description="when it retires: it was the core before")

    @property
    def lease_id(self) -> str:
        return f"{self.run}/{self.cell.index}/{self.lease}"


class StepTiming(Message):
    """One step as it went. `seconds` from the workflow's clock, so it includes scheduling."""

    name: str
    seconds: float
    ok: bool = True
    detail: str = ""


class TransitionFigures(Message):
    """What a move cost and kept, as far as it is known when the move ends.

    `kv_tokens_reused` were read at their destinations; `weights_bytes` were loaded into the engine. How many tokens the
    continued requests found in a cache or computed again, and how long their harnesses waited, is known only once they
    have gone on: `kv_tokens_recomputed` stays 0 here, the ledger's reader counts it from the segments.
    """

    executions_rerouted: int = 0
    requests_moved: int = 0
    kv_tokens_reused: int = 0
    kv_tokens_recomputed: int = 0
    kv_bytes: int = 0
    weights_bytes: int = 0


class TransitionResult(StrEnum):
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    PARKED = "parked"
    REBOOTED = "rebooted"
    SUPERSEDED = "superseded"


class TransitionReport(Message):
    """The result of a RoleTransition; also its row in the records."""

    transition: str
    run: str
    cell: int
    direction: Direction
    result: TransitionResult
    started_at: float
    ended_at: float
    steps: tuple[StepTiming, ...]
    verbs: tuple[str, ...] = Field(default=(), description="what was done to worker groups: `rollout suspend`")
    figures: TransitionFigures = TransitionFigures()
    reason: str = ""


class Resolution(StrEnum):
    """What an operator decides about a step that failed for good."""

    RETRY = "retry"
    SKIP = "skip"
    ABORT = "abort"
