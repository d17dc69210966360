"""One harness on one tiny repository task, from an empty workspace to recorded calls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from activities.endings import without_secret
from activities.harness import HarnessActivities, HarnessHost
from infra.processes.isolation import Isolation
from infra.processes.launch import Runners
from infra.records.calls import RecordedCall, calls_of
from infra.records.executions import ExecutionRecords, execution_of
from infra.workspaces import ExecutionFolder
from workers.rehearsal.model import CONTEXT_TOKENS
from workers.rehearsal.parts import INSTRUCTION, Part
from workers.rehearsal.stage import RUN, Stage
from workflows.messages.burst import HarnessChoice, Limits, Purpose, Sampling
from workflows.messages.execution import Evaluation, ExecutionSpec, FinishExecution, HarnessRun, Outcome

CALL_TOKENS = 4096
CALLS = 32
_LAST_LINES = 12
_SPOKEN = 8
"""Tokens an answer has in its middle; all but the shortest that a script gives have more."""


@dataclass(frozen=True)
class Try:
    """What came of it. `written`: what out.txt says afterwards, None if there is none; `calls` in order of arrival;
    `stderr`: the end of what it wrote there, without the secret token."""

    spec: ExecutionSpec
    run: HarnessRun
    written: str | None
    calls: tuple[RecordedCall, ...]
    moved: int
    stderr: str = ""


class Rehearsal:
    """Harnesses of `harness_root` on `stage`; `checkout` is where runners are started from."""

    def __init__(self, stage: Stage, harness_root: Path, checkout: Path, isolation: Isolation) -> None:
        self._stage = stage
        self._runners = Runners(checkout, poll_seconds=0.05)
        self._host = HarnessHost(
            workspaces=stage.folder / "workspaces",
            harness_root=harness_root,
            proxy_url=stage.url,
            records=ExecutionRecords(stage.database),
            runners=self._runners,
            proxy=stage.control,
            isolation=isolation,
            hidden=(stage.folder,),
            context_tokens=CONTEXT_TOKENS,
        )
        self._activities = HarnessActivities(self._host)

    async def run(
        self,
        choice: HarnessChoice,
        part: Part,
        *,
        told: Callable[[str], None],
        drains: int = 0,
        wall_seconds: float = 300,
    ) -> Try:
        """Run it to its end; `drains` times an engine that answers is drained in mid-answer. `told` hears of it.

        Raises InvalidSpec and HarnessUnusable as preparing an execution does.
        """
        spec = self._spec(choice.model_copy(update={"settings": {**part.settings, **choice.settings}}), wall_seconds)
        await self._activities.prepare(spec)
        told(f"{choice.name} starts in a fresh repository; {self._host.isolation.words}")
        moved: list[int] = []
        drainer = asyncio.create_task(self._drain_in_mid_answer(drains, moved, told))
        try:
            run = await self._activities.run(spec, _Unwatched())
        finally:
            drainer.cancel()
            (drained,) = await asyncio.gather(drainer, return_exceptions=True)
        evaluation = Evaluation(outcome=Outcome.NO_ARTIFACT, detail="a rehearsal is not scored")
        await self._activities.finish(FinishExecution(spec=spec, run=run, evaluation=evaluation))
        if isinstance(drained, Exception):
            raise drained
        folder = ExecutionFolder.of(self._host.workspaces, spec)
        target = folder.app / "out.txt"
        with self._stage.database.connect() as connection:
            calls = tuple(calls_of(connection, execution_of(spec)))
        written = target.read_text(errors="replace") if target.is_file() else None
        return Try(spec, run, written, calls, sum(moved), _last_words(folder))

    async def _drain_in_mid_answer(self, drains: int, moved: list[int], told: Callable[[str], None]) -> None:
        """Answers are held in their middle until they have been moved, so that none is over too soon, however slow the
        machine; the door opens again behind each. Goes on until it is cancelled: two agents may be held at once."""
        if not drains:
            return
        self._stage.hold_answers(_SPOKEN)
        while True:
            for cell in self._stage.held():
                if len(moved) + 1 >= drains:
                    self._stage.hold_no_more()
                requests = await self._stage.drain(cell)
                await self._stage.open_door(cell)
                if requests:
                    moved.append(requests)
                    told(f"cell-{cell} was drained in mid-answer, {requests} request moved")
            await asyncio.sleep(0.01)

    def _spec(self, choice: HarnessChoice, wall_seconds: float) -> ExecutionSpec:
        return ExecutionSpec(
            run=RUN,
            burst="try",
            group=0,
            member=0,
            purpose=Purpose.EVALUATE,
            task=str(write_task(self._stage.folder / "task")),
            seed=0,
            dispatch_version=1,
            sampling=Sampling(max_call_tokens=CALL_TOKENS),
            harness=choice,
            limits=Limits(wall_seconds=wall_seconds, model_calls=CALLS),
        )


def _last_words(folder: ExecutionFolder) -> str:
    """The last lines of the newest start's standard error."""
    files = sorted(folder.root.rglob("stderr*"), key=lambda path: path.stat().st_mtime)
    text = files[-1].read_text(errors="replace") if files else ""
    token = folder.token.read_text() if folder.token.exists() else ""
    return without_secret("\n".join(text.splitlines()[-_LAST_LINES:]), token)


class _Unwatched:
    """No workflow waits: nothing beats, and a cancellation is meant."""

    def __call__(self) -> None:
        """Nobody listens."""

    def must_stop(self) -> bool:
        return True


def write_task(folder: Path) -> Path:
    """A repository with one page, and the task to write a file into it."""
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text('version = "1.0"\n')
    (folder / "instruction.md").write_text(INSTRUCTION)
    (folder / "environment" / "README.md").write_text("# A repository\n")
    (folder / "tests" / "test.sh").write_text("exit 0\n")
    return folder
