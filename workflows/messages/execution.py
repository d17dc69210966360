"""One harness run on one task: what is launched, how it ended, what is reported once."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.burst import HarnessChoice, Limits, Purpose, Sampling, Selection


class EndReason(StrEnum):
    """How the harness' run ended. The score does not depend on it: the workspace that is left is scored."""

    SUBMITTED = "submitted"
    EXITED = "exited"
    CRASHED = "crashed"
    WALL_LIMIT = "wall_limit"
    CALL_LIMIT = "call_limit"
    CANCELLED = "cancelled"
    NEVER_RAN = "never_ran"
    TERMINATED = "terminated"


class Outcome(StrEnum):
    """What the evaluation says. Only SCORED executions enter group statistics."""

    SCORED = "scored"
    EVALUATOR_FAILED = "evaluator_failed"
    NO_ARTIFACT = "no_artifact"


class ExecutionSpec(Message):
    """Everything an AgentExecution workflow needs; small, no secrets."""

    run: str
    burst: str
    group: int
    member: int
    purpose: Purpose
    task: str = Field(description="absolute path of the task folder")
    seed: int
    dispatch_version: int = Field(description="published weight version when it was dispatched")
    sampling: Sampling
    harness: HarnessChoice
    limits: Limits
    selection: Selection = Selection()
    no_artifact: Literal["exclude", "zero"] = "exclude"


class PreparedWorkspace(Message):
    """Result of preparing: where the workspace is and that the proxy knows the execution's token."""

    workspace: str
    prepared: bool
    reason: str = ""


class HarnessRun(Message):
    """Result of running the harness."""

    end: EndReason
    exit_code: int | None = None
    seconds: float = 0.0
    model_calls: int = 0
    detail: str = Field(default="", max_length=2000)


class Evaluation(Message):
    """Result of scoring the workspace that is left."""

    outcome: Outcome
    reward: float | None = None
    detail: str = Field(default="", max_length=2000)
    seconds: float = Field(default=0.0, description="the grader ran")
    evaluator: str = Field(default="", description="sha256 of the tests that gave the reward")


class ProcessedExecution(Message):
    """Result of the Trajectory Processor for one execution."""

    calls: int
    paths: int
    target_tokens: int
    oldest_version: int | None
    newest_version: int | None
    candidates: int = Field(default=0, description="paths that could have been trained")
    unique_tokens: int = Field(default=0, description="of the candidates, what they share counted once")
    expanded_tokens: int = Field(default=0, description="of the candidates one by one")
    unmerged_calls: int = Field(default=0, description="calls that neither begin nor go on with a recorded history")


class ExecutionClosed(Message):
    """The one report of an execution to the Scheduler; a second one for the same id is ignored."""

    execution: str
    burst: str
    group: int
    member: int
    end: EndReason
    outcome: Outcome
    reward: float | None = None
    target_tokens: int = 0
    model_calls: int = 0
    seconds: float = 0.0
    harness_seconds: float = Field(default=0.0, description="its harness ran, so long it kept an execution slot")
    evaluator_seconds: float = Field(default=0.0, description="its grader ran")


class FinishExecution(Message):
    """End an execution for good: no more calls, no process left, how it ended on record. Idempotent."""

    spec: ExecutionSpec
    run: HarnessRun
    evaluation: Evaluation
