"""Scoring the workspace that is left, by the task's own tests, in a clean process.

Rules kept here: no process of the execution is alive when grading starts; tests come from a trusted copy, and what
they run of the agent's is walled in as the agent was; how the harness ended does not matter; a grader that times out,
is killed or leaves no valid reward has failed (a reward it wrote before is not final); failures are counted on disk
and retried up to the limit, each time on the workspace as the agent left it; the first result is on record and never
computed again.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from temporalio import activity

from activities.heartbeats import Heartbeat
from activities.rewards import read_reward
from activities.slots import Gate
from infra.plain_files import read_plain
from infra.processes.capture import plain_text
from infra.processes.isolation import OPEN, Isolation
from infra.processes.job import Job, Result
from infra.processes.launch import Runners, end_marked
from infra.processes.limits import ProcessLimits
from infra.processes.sandbox import Sandbox
from infra.records.executions import ExecutionRecords, execution_of
from infra.tasks import Task, load_task
from infra.workspaces import ExecutionFolder, copy_tree, folder_sha256, remove_tree
from workflows.messages.errors import EvaluatorFailure, StillHeld
from workflows.messages.execution import Evaluation, ExecutionSpec, Outcome

_log = logging.getLogger(__name__)
_FAILED, _WRITABLE = "failed.txt", ("logs", "home", "tmp")
_EVALUATOR = "evaluator.txt"
"""The sha256 of the tests, taken before they run: what they leave beside them is no part of it."""


class EvaluationActivities:
    """Runs in the harness host. `workspaces`: the folder of all executions; `hidden`: what nothing graded may read;
    `may_use_network`: whether tests of a task that asks for it share the machine's network."""

    def __init__(
        self,
        records: ExecutionRecords,
        workspaces: Path,
        runners: Runners,
        load: Callable[[Path], Task] = load_task,
        gate: Gate | None = None,
        isolation: Isolation = OPEN,
        hidden: tuple[Path, ...] = (),
        may_use_network: bool = False,
    ) -> None:
        self._gate = gate or Gate()
        self._isolation, self._hidden = isolation, (*hidden, workspaces)
        self._may_use_network = may_use_network
        self._records, self._workspaces, self._runners, self._load = records, workspaces, runners, load

    @activity.defn(name="evaluate_workspace")
    async def evaluate_workspace(self, spec: ExecutionSpec) -> Evaluation:
        """Score an execution. Raises EvaluatorFailure while attempts are left, StillHeld if its processes live on.

        A cancelled evaluation leaves no process behind.
        """
        execution = execution_of(spec)
        row = await asyncio.to_thread(self._records.get, execution)
        if row is not None and row.evaluation is not None:
            return row.evaluation
        folder = ExecutionFolder.of(self._workspaces, spec)
        async with self._gate():
            begun = time.monotonic()
            evaluation = await self._evaluate(spec, folder)
            seconds = time.monotonic() - begun
        scored = await asyncio.to_thread(self._records.score, execution, evaluation)
        return scored.model_copy(update={"seconds": seconds})

    async def _evaluate(self, spec: ExecutionSpec, folder: ExecutionFolder) -> Evaluation:
        if not folder.app.is_dir() and not folder.pristine.is_dir():
            return Evaluation(outcome=Outcome.NO_ARTIFACT, detail="there is no workspace")
        if never_started(folder):
            return Evaluation(outcome=Outcome.NO_ARTIFACT, detail="the harness never ran")
        if await asyncio.to_thread(end_marked, str(folder.root)):
            raise StillHeld("processes of the execution cannot be ended; it is not graded beside them")
        number = failures(folder) + 1
        grading = folder.grading(number)
        try:
            reward = await self._grade(spec, folder, grading)
        except EvaluatorFailure as failure:
            text = plain_text(str(failure), 500)
            (grading / _FAILED).write_text(text)
            if number < spec.limits.evaluator_attempts:
                raise
            detail = f"the grader failed {number} times, at last: {text}"
            return Evaluation(outcome=Outcome.EVALUATOR_FAILED, detail=detail)
        evaluator = await asyncio.to_thread(marked_evaluator, grading)
        return Evaluation(outcome=Outcome.SCORED, reward=reward, evaluator=evaluator)

    async def _grade(self, spec: ExecutionSpec, folder: ExecutionFolder, grading: Path) -> float:
        """One grading, begun or picked up again where an earlier worker left it."""
        beat = Heartbeat()
        if (grading / "job.json").exists():
            self._runners.resume(grading)
        else:
            task = self._load(Path(spec.task))
            await asyncio.to_thread(lay_out, folder, grading, task)
            walls = self._isolation.sandbox(
                writable=(folder.app, *(grading / name for name in _WRITABLE)),
                temporary=grading / "tmp",
                hidden=(*self._hidden, task.folder),
                readable=(grading / "tests",),
                shared_network=task.internet and self._may_use_network,
            )
            self._runners.start(grading, grading_job(spec, folder, grading, task, walls))
        try:
            result = await self._runners.follow(grading, beat=beat)
        except asyncio.CancelledError:
            if beat.must_stop():
                await self._runners.stop(grading, marker=str(grading), grace_seconds=0.5)
                remove_tree(grading)
            raise
        if result.survivors or result.end == "runner_lost":
            await asyncio.to_thread(end_marked, str(grading))
        return verdict(result, grading / "logs")


def verdict(result: Result, logs: Path) -> float:
    """The reward of a grading that ended. Raises EvaluatorFailure when it gives none.

    The exit code does not matter: test runners exit non-zero when tests fail, and the reward says so.
    """
    if result.end != "exited":
        raise EvaluatorFailure(f"the tests ended by {result.end} after {result.seconds:.0f} s {result.detail}".strip())
    if result.exit_code is not None and result.exit_code < 0:
        raise EvaluatorFailure(f"the tests were killed by signal {-result.exit_code}")
    return read_reward(logs)


def marked_evaluator(grading: Path) -> str:
    """The sha256 of the tests of a grading; empty if it is not there, or no longer as it was written."""
    try:
        return read_plain(grading / _EVALUATOR, 200).decode("ascii", "replace")
    except OSError:
        return ""


def lay_out(folder: ExecutionFolder, grading: Path, task: Task) -> None:
    """Make the folders of a grading. The first one keeps a copy of the workspace, every later one begins from it."""
    remove_tree(grading)
    if folder.pristine.is_dir():
        remove_tree(folder.app)
        copy_tree(folder.pristine, folder.app)
    else:
        try:
            copy_tree(folder.app, folder.pristine)
        except OSError as error:
            _log.warning("no copy of %s to retry a grading on: %s", folder.app, error)
    for name in (*_WRITABLE, "logs/verifier"):
        (grading / name).mkdir(parents=True)
    copy_tree(task.tests, grading / "tests")
    (grading / _EVALUATOR).write_text(folder_sha256(grading / "tests"))


def grading_job(
    spec: ExecutionSpec, folder: ExecutionFolder, grading: Path, task: Task, walls: Sandbox | None = None
) -> Job:
    """The tests as a command: nothing of the agent's environment, the layout's paths as variables."""
    limits = spec.limits
    return Job(
        argv=("bash", str(grading / "tests" / "test.sh")),
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(grading / "home"),
            "TMPDIR": str(grading / "tmp"),
            "GYRE_WORKSPACE": str(folder.app),
            "GYRE_TESTS_DIR": str(grading / "tests"),
            "GYRE_LOGS_DIR": str(grading / "logs"),
        },
        cwd=str(folder.app),
        marker=str(grading),
        sandbox=walls,
        limits=ProcessLimits(
            wall_seconds=min(limits.evaluator_seconds, task.verifier_seconds or limits.evaluator_seconds),
            grace_seconds=min(limits.grace_seconds, 1.0),
            output_bytes=limits.output_bytes,
            memory_bytes=limits.memory_bytes,
            processes=limits.processes,
            file_bytes=limits.file_bytes,
        ),
    )


def failures(folder: ExecutionFolder) -> int:
    """How many gradings failed so far."""
    return len(list(folder.private.glob(f"grading-*/{_FAILED}")))


def never_started(folder: ExecutionFolder) -> bool:
    """Whether no start of the harness ever came to its first instruction."""
    results = [Result.load(run) for run in folder.private.glob("run-*")]
    return all(result is not None and result.end == "unstartable" for result in results)
