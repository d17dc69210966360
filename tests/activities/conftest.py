"""Real workspaces, runners, database and activities on small tasks; only the proxy is played by a notebook."""

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from temporalio.testing import ActivityEnvironment

from activities.evaluation import EvaluationActivities
from activities.harness import HarnessActivities, HarnessHost
from infra.processes.launch import Runners, end_marked
from infra.records.database import open_database
from infra.records.executions import ExecutionRecords
from infra.workspaces import ExecutionFolder
from workflows.messages.burst import HarnessChoice, Limits, Purpose, Sampling
from workflows.messages.execution import ExecutionSpec
from workflows.messages.routing import RegisterExecution

CHECKOUT = Path(__file__).parents[2]


@dataclass
class Notebook:
    """Stands at the proxy's control API and writes down what it is asked."""

    registered: list[RegisterExecution] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    async def register_execution(self, registration: RegisterExecution) -> None:
        self.registered.append(registration)

    async def end_execution(self, execution: str) -> None:
        self.closed.append(execution)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)
    yield engine
    engine.dispose()


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Path]:
    """Writes a task whose tests are the given shell script."""

    def make(test: str, *, files: dict[str, str] | None = None, name: str = "task") -> Path:
        folder = tmp_path / "tasks" / name
        (folder / "environment").mkdir(parents=True)
        (folder / "tests").mkdir()
        for file, text in (files or {"start.txt": "start\n"}).items():
            (folder / "environment" / file).write_text(text)
        (folder / "task.toml").write_text('version = "1.0"\n')
        (folder / "instruction.md").write_text("Do it.\n")
        (folder / "tests/test.sh").write_text(f'cd "$GYRE_WORKSPACE"\n{test}\n')
        return folder

    return make


@pytest.fixture
def make_spec() -> Callable[..., ExecutionSpec]:
    """A spec whose harness is a shell script."""

    def make(task: Path, script: str = "true", *, member: int = 0, **limits) -> ExecutionSpec:
        values = {"wall_seconds": 200, "grace_seconds": 0.3, "evaluator_seconds": 200, **limits}
        return ExecutionSpec(
            run="test",
            burst="first",
            group=7,
            member=member,
            purpose=Purpose.TRAIN,
            task=str(task),
            seed=1,
            dispatch_version=3,
            sampling=Sampling(),
            harness=HarnessChoice(name="command", settings={"command": f"sh -c {shlex.quote(script)}"}),
            limits=Limits(**values),
        )

    return make


@dataclass
class Host:
    """The activities of one harness host, and what they stand on."""

    workspaces: Path
    records: ExecutionRecords
    proxy: Notebook
    runners: Runners
    harness: HarnessActivities
    evaluation: EvaluationActivities

    def folder(self, spec: ExecutionSpec) -> ExecutionFolder:
        return ExecutionFolder.of(self.workspaces, spec)


@pytest.fixture
def new_host(tmp_path: Path, engine: Engine) -> Iterator[Callable[[], Host]]:
    """Makes a host; a second one is the first, restarted."""
    workspaces, proxy, made = tmp_path / "workspaces", Notebook(), []

    def make() -> Host:
        runners = Runners(CHECKOUT, poll_seconds=0.02)
        records = ExecutionRecords(engine)
        harness = HarnessActivities(
            HarnessHost(
                workspaces=workspaces,
                harness_root=tmp_path / "harness",
                proxy_url="http://127.0.0.1:9",
                records=records,
                runners=runners,
                proxy=proxy,
            )
        )
        made.append(runners)
        return Host(workspaces, records, proxy, runners, harness, EvaluationActivities(records, workspaces, runners))

    yield make
    for folder in workspaces.glob("*/*/*"):
        for marker in (folder, *folder.glob("private/grading-*")):
            assert end_marked(str(marker)) == 0
    for runners in made:
        runners.reap()


@pytest.fixture
def host(new_host: Callable[[], Host]) -> Host:
    return new_host()


@pytest.fixture
def environment() -> Callable[[], ActivityEnvironment]:
    """Makes an activity's environment: one attempt, with heartbeats."""

    def make() -> ActivityEnvironment:
        made = ActivityEnvironment()
        made.info = dataclasses.replace(ActivityEnvironment.default_info(), heartbeat_timeout=timedelta(seconds=0.3))
        return made

    return make
