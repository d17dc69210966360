"""Arguments and results of the light steps on the control queue."""

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.execution import EndReason, ExecutionSpec, Outcome
from workflows.messages.scheduling import Weights
from workflows.messages.transition import Direction


class LaunchExecutions(Message):
    """Start these AgentExecution workflows by their fixed ids; one that already exists counts as started."""

    executions: tuple[ExecutionSpec, ...]


class SweepRoster(Message):
    """Describe these execution workflows."""

    executions: tuple[str, ...]


class ExecutionFate(Message):
    """An execution workflow that is no longer open though it never reported, and what the records know of it."""

    execution: str
    status: str
    end: EndReason
    outcome: Outcome
    reward: float | None = None
    target_tokens: int = 0


class SweptRoster(Message):
    closed: tuple[ExecutionFate, ...]


class CancelExecutions(Message):
    """Ask these execution workflows to cancel; unknown ones are ignored."""

    executions: tuple[str, ...]
    reason: str


class LedgerEntry(Message):
    """One decision, refusal or event. `token` makes the insert idempotent.

    `state` is the policy's input just before (a dumped `PolicyState`): w, d, l, f, capacity, every cell's role and,
    where the policy looks at them, the components as measured. A refusal is written once per change of its reason. What
    a policy predicted stands beside it; what came of a move is computed from the records when the ledger is read, and
    where the Scheduler itself has judged a move (safe mode), it says so in an entry of kind `outcome`.
    """

    run: str
    at: float
    kind: str = Field(
        description="decisions: move, refuse, stay, return, outcome; events: dispatch, publish, close, cell, alarm, "
        "reboot (of a cell, to get on), safe_mode (entered, left), "
        "fleet (a cell offered, reclaimed, left; the core handed over)"
    )
    cell: int | None = None
    reasons: tuple[str, ...] = Field(description="for a decision: the reason's name, then the detail in words")
    policy: str = Field(default="", description="name of the policy that decided; empty: an event, or an operator")
    direction: Direction | None = Field(default=None, description="where cells were, or would have been, sent")
    together: tuple[int, ...] = Field(default=(), description="cells beside `cell` that make the same move")
    bottleneck: str = Field(default="", description="the component predicted to be the slowest")
    expected_gain_seconds: float | None = Field(default=None, description="of one iteration; without the migration")
    iteration_seconds: float | None = Field(default=None, description="predicted for one iteration if nothing moves")
    migration_seconds: float | None = Field(default=None, description="predicted for the move itself")
    realised_gain_seconds: float | None = Field(default=None, description="of an `outcome`: of one iteration")
    about: str = Field(default="", description="of an `outcome`: token of the decision it belongs to")
    state: dict[str, object] = {}
    token: str


class FindSteps(Message):
    """Which steps are open in the role changes of these cells?"""

    run: str
    cells: tuple[int, ...]


class OpenStep(Message):
    """A step that is out. `since`: when its attempt began or, unless it `runs`, was to begin, seconds since the epoch;
    `failure`: what ended the attempt before.
    """

    cell: int
    step: str
    attempt: int
    since: float
    runs: bool
    failure: str = ""


class FoundSteps(Message):
    steps: tuple[OpenStep, ...]


class MeasurePipeline(Message):
    """How busy is the pipeline? Shares are taken over the time since `since` (seconds since the epoch)."""

    run: str
    since: float
    cells: tuple[int, ...] = Field(description="those in training")


class PipelineSample(Message):
    """The pipeline at `at`. `training`: cell -> share of the time in which it had a micro-step in work."""

    at: float
    training: dict[int, float] = {}


class ShareSlots(Message):
    """So many harnesses and so many graders may run at once from now on. `change` rises; an older one is ignored."""

    run: str
    change: int
    harness: int = Field(ge=1)
    evaluator: int = Field(ge=1)


class SlotsInUse(Message):
    """Processor slots with work in them."""

    harness: int = Field(ge=0)
    evaluator: int = Field(ge=0)


class RecordPublished(Message):
    """Every cell that serves has verified this version."""

    run: str
    version: int


class RecordCore(Message):
    """From this hand-over on, `cell` is the core: for those who boot, and those who look for it. `change` rises."""

    run: str
    change: int = Field(ge=1)
    cell: int
    weights: Weights


class RecordLedger(Message):
    entries: tuple[LedgerEntry, ...]
