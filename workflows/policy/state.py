"""What a policy sees and what it answers. No clock, no I/O: time comes in as a number."""

from enum import StrEnum

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.fleet import CellRole
from workflows.messages.policies import Bounds, ThroughputSettings
from workflows.messages.transition import Direction
from workflows.policy.component import ComponentView, Plan


class CellView(Message):
    """One cell. `slots` is C_e; `serving`: verified at the published version with an open door; `leaving`: reclaimed,
    so it counts for nothing that is still to come."""

    index: int
    role: CellRole
    slots: int
    trains: bool = True
    serving: bool = False
    leaving: bool = False

    @property
    def eligible(self) -> bool:
        """Counts for the training prefix: a parked, lost or starting cell is skipped."""
        return self.trains and self.role not in (CellRole.PARKED, CellRole.LOST, CellRole.STARTING)


class BatchView(Message):
    """The open batch. `needed`: groups it still needs, B minus those assigned to it."""

    batch: str
    needed: int = Field(ge=0)


class PolicyState(Message):
    """Everything `decide` may look at.

    Counters are cumulative over the run (docs/rules.md): dispatched >= launched >= finished >= 0, all classes of
    executions together, because all need slots.
    """

    now: float
    dispatched: int
    launched: int
    finished: int
    cells: tuple[CellView, ...] = Field(description="in the order in which they train: the core, then by index")
    standalone_slots: int = 0
    ready_unassigned: int = 0
    batch: BatchView | None = None
    groups_per_step: int
    supply_fraction: float
    hold_seconds: float
    move_under_way: bool = False
    streaming: bool = True
    burst_needed: int | None = Field(default=None, description="groups all open steps of the burst still need")
    split: int = Field(default=1, ge=1, description="training cells of the policies that hold a split")
    bounds: Bounds = Bounds()
    components: tuple[ComponentView, ...] = Field(default=(), description="the pipeline as measured, for `throughput`")
    throughput: ThroughputSettings = ThroughputSettings()

    @property
    def core(self) -> int:
        """The cell that holds the optimizer."""
        return self.cells[0].index

    @property
    def waterlevel(self) -> int:
        """w = d - f: queued and running executions."""
        return self.dispatched - self.finished

    @property
    def capacity(self) -> int:
        """C_R: execution slots of engines verified at the published version with an open door."""
        return self.standalone_slots + sum(cell.slots for cell in self.cells if cell.serving)


class Hold(Message):
    """Since when the supply test of `cell` has held without a break."""

    cell: int
    since: float


class Reason(StrEnum):
    """Why a cell moves, stays or waits."""

    CAPACITY = "capacity"
    SUPPLY = "supply"
    HOLD = "hold"
    MOVE_UNDER_WAY = "move_under_way"
    NO_BATCH = "no_batch"
    NO_CELL = "no_cell"
    CORE_PARKED = "core_parked"
    CORE_ABSENT = "core_absent"
    NOT_SERVING = "not_serving"
    ALL_TESTS_PASS = "all_tests_pass"
    BOUNDS = "bounds"
    SPLIT = "split"
    POOL = "pool"
    LENT = "lent"
    NO_DONOR = "no_donor"
    NO_GAIN = "no_gain"
    GAIN = "gain"
    SETTLING = "settling"
    SAFE_MODE = "safe_mode"
    STARVED = "starved"


class Verdict(StrEnum):
    MOVE = "move"
    REFUSE = "refuse"


class Decision(Message):
    """One answer. `recheck_seconds`: when time alone may change it (the hold interval).

    `together`: cells that make the same move at the same time (a whole pool, a planned reallocation).
    `expected_gain_seconds`: of one iteration, as predicted. `plan`: what a predicting policy wants done; one that moves
    no cells (processor slots) has `cell` None.
    """

    verdict: Verdict
    cell: int | None
    reason: Reason
    detail: str
    recheck_seconds: float | None = None
    direction: Direction = Direction.TO_TRAINING
    together: tuple[int, ...] = ()
    bottleneck: str = ""
    expected_gain_seconds: float | None = None
    plan: Plan | None = None

    @property
    def movers(self) -> tuple[int, ...]:
        """Every cell that moves; none when it is a refusal."""
        if self.verdict is Verdict.REFUSE or self.cell is None:
            return ()
        return (self.cell, *self.together)
