"""The table of activities a workflow may call: name, models, queue, time-outs, retry.

Workflows call steps only through `workflows.parking`; the workers check at start that what they register is exactly
the part of this table that belongs to their queue.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

from temporalio.common import RetryPolicy

from workflows.messages import batch, cell_steps, control, execution, group, routing, scheduling, tasks, transition
from workflows.messages.base import Message

Argument = TypeVar("Argument", bound=Message)
Result = TypeVar("Result", bound=Message | None)


class Queue(StrEnum):
    """Which kind of task queue serves a step; `workflows.messages.ids` makes the names."""

    CONTROL = "control"
    HARNESS = "harness"
    WATCH = "watch"
    CELL = "cell"
    STREAM = "stream"


@dataclass(frozen=True)
class Step(Generic[Argument, Result]):
    """One activity. Seconds everywhere; `attempts` 0 means unlimited (back-off capped at 60 s).

    `heartbeat`: a worker that says nothing for that long has lost the step, and it is given out again.
    """

    name: str
    argument: type[Argument]
    result: type[Result]
    queue: Queue
    start_to_close: float
    heartbeat: float = 15.0
    schedule_to_start: float | None = None
    attempts: int = 0
    first_back_off: float = 0.5

    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(
            initial_interval=timedelta(seconds=self.first_back_off),
            backoff_coefficient=2.0,
            maximum_interval=timedelta(seconds=60),
            maximum_attempts=self.attempts,
        )


_NONE = type(None)

# --- control queue: light, idempotent, retried for ever
SELECT_TASKS = Step("select_tasks", tasks.SelectTasks, tasks.SelectedTasks, Queue.CONTROL, 30)
LAUNCH_EXECUTIONS = Step("launch_executions", control.LaunchExecutions, _NONE, Queue.CONTROL, 60)
SWEEP_ROSTER = Step("sweep_roster", control.SweepRoster, control.SweptRoster, Queue.CONTROL, 60)
FIND_STEPS = Step("find_steps", control.FindSteps, control.FoundSteps, Queue.CONTROL, 20)
OPEN_CELL = Step("open_cell", scheduling.OpenCell, _NONE, Queue.CONTROL, 30)
CANCEL_EXECUTIONS = Step("cancel_executions", control.CancelExecutions, _NONE, Queue.CONTROL, 60)
RECORD_LEDGER = Step("record_ledger", control.RecordLedger, _NONE, Queue.CONTROL, 30)
RECORD_PUBLISHED = Step("record_published", control.RecordPublished, _NONE, Queue.CONTROL, 30)
MEASURE_PIPELINE = Step(
    "measure_pipeline", control.MeasurePipeline, control.PipelineSample, Queue.CONTROL, 30, first_back_off=1
)
RECORD_CORE = Step("record_core", control.RecordCore, _NONE, Queue.CONTROL, 30)
RECORD_TRANSITION = Step("record_transition", transition.TransitionReport, _NONE, Queue.CONTROL, 30)
ADMIT_GROUP = Step("admit_group", group.AdmitGroup, group.AdmittedGroup, Queue.CONTROL, 120)
PACK_GROUP = Step("pack_group", group.PackGroup, group.PackedGroup, Queue.CONTROL, 120)
RECORD_BATCH_OPENED = Step("record_batch_opened", batch.OpenedBatch, _NONE, Queue.CONTROL, 30)
COMMIT_BATCH = Step("commit_batch", batch.CommitBatch, _NONE, Queue.CONTROL, 30)
REGISTER_ENGINE = Step("register_engine", routing.EngineEntry, _NONE, Queue.CONTROL, 20)
CHANGE_DOOR = Step("change_door", routing.DoorChange, _NONE, Queue.CONTROL, 20, attempts=20)
REROUTE_EXECUTIONS = Step(
    "reroute_executions", routing.RerouteRequest, routing.ReroutePlan, Queue.CONTROL, 20, attempts=8
)
CANCEL_REQUESTS = Step("cancel_requests", routing.CancelRequest, routing.CancelResult, Queue.CONTROL, 30, attempts=8)
ANNOUNCE_HANDOFF = Step("announce_handoff", routing.HandoffDone, _NONE, Queue.CONTROL, 20, attempts=8)

# --- harness host
PREPARE_WORKSPACE = Step(
    "prepare_workspace", execution.ExecutionSpec, execution.PreparedWorkspace, Queue.HARNESS, 120, attempts=10
)
RUN_HARNESS = Step("run_harness", execution.ExecutionSpec, execution.HarnessRun, Queue.WATCH, 7 * 24 * 3600)
EVALUATE_WORKSPACE = Step("evaluate_workspace", execution.ExecutionSpec, execution.Evaluation, Queue.HARNESS, 3600)
PROCESS_EXECUTION = Step("process_execution", execution.ExecutionSpec, execution.ProcessedExecution, Queue.HARNESS, 600)
FINISH_EXECUTION = Step("finish_execution", execution.FinishExecution, _NONE, Queue.HARNESS, 120)
SHARE_SLOTS = Step("share_slots", control.ShareSlots, control.SlotsInUse, Queue.HARNESS, 20)

# --- cells: one boot of one worker; a dead one never takes the step, so schedule-to-start is short. The steps up to
#     the release of memory have few attempts (they roll back), those after have more (they go forward, then park).
_CELL = {"schedule_to_start": 20.0, "heartbeat": 10.0}
RETAIN_KV = Step("retain_kv", cell_steps.RetainKv, _NONE, Queue.CELL, 15, attempts=2, **_CELL)
PULL_KV = Step("pull_kv", cell_steps.PullKv, cell_steps.KvPulled, Queue.CELL, 30, attempts=2, **_CELL)
RELEASE_KV = Step("release_kv", cell_steps.CellLease, _NONE, Queue.CELL, 15, attempts=3, **_CELL)
AWAIT_QUIET = Step("await_quiet", cell_steps.CellLease, _NONE, Queue.CELL, 30, attempts=3, **_CELL)
RELEASE_ROLLOUT = Step("release_rollout", cell_steps.CellLease, _NONE, Queue.CELL, 60, attempts=6, **_CELL)
RESTORE_TRAINING = Step("restore_training", cell_steps.CellLease, _NONE, Queue.CELL, 120, attempts=6, **_CELL)
REBOOT_CELL = Step("reboot_cell", cell_steps.RebootCell, _NONE, Queue.CELL, 15, attempts=2, **_CELL)
LEAVE_STREAM = Step("leave_stream", cell_steps.CellLease, _NONE, Queue.CELL, 60, attempts=6, **_CELL)
RELEASE_TRAINING = Step("release_training", cell_steps.CellLease, _NONE, Queue.CELL, 60, attempts=6, **_CELL)
RESUME_ROLLOUT = Step("resume_rollout", cell_steps.CellLease, _NONE, Queue.CELL, 120, attempts=6, **_CELL)
LOAD_WEIGHTS = Step("load_weights", cell_steps.LoadWeights, _NONE, Queue.CELL, 600, attempts=8, **_CELL)
SWAP_WEIGHTS = Step(
    "swap_weights", cell_steps.LoadWeights, cell_steps.EngineVerified, Queue.CELL, 600, attempts=3, **_CELL
)
VERIFY_ENGINE = Step(
    "verify_engine", cell_steps.LoadWeights, cell_steps.EngineVerified, Queue.CELL, 60, attempts=4, **_CELL
)
TAKE_CORE = Step("take_core", cell_steps.TakeCore, cell_steps.CoreTaken, Queue.CELL, 1800, attempts=3, **_CELL)
LAY_DOWN_CORE = Step("lay_down_core", cell_steps.CellLease, _NONE, Queue.CELL, 120, attempts=2, **_CELL)
JOIN_BATCH = Step("join_batch", batch.JoinBatch, _NONE, Queue.CELL, 300, attempts=4, **_CELL)
SEAL_BATCH = Step("seal_batch", batch.SealBatch, batch.Sealed, Queue.CELL, 120, attempts=4, **_CELL)
COMBINE_UPDATE = Step("combine_update", batch.CombineUpdate, batch.UpdateApplied, Queue.CELL, 1800, attempts=3, **_CELL)
RELEASE_BATCH = Step("release_batch", batch.ReleaseBatch, _NONE, Queue.CELL, 60, attempts=3, **_CELL)

# --- the stream of one batch: whichever training cell has room claims
RUN_MICRO_STEP = Step(
    "run_micro_step", batch.MicroStepTask, batch.MicroStepDone, Queue.STREAM, 3600, heartbeat=10, attempts=1
)

STEPS: tuple["Step[Any, Any]", ...] = tuple(
    cast("Step[Any, Any]", value) for value in list(globals().values()) if isinstance(value, Step)
)


def steps_of(queue: Queue) -> frozenset[str]:
    """Names of the activities that a worker of this kind of queue must register, no more and no fewer."""
    return frozenset(step.name for step in STEPS if step.queue is queue)
