"""What a runner is told and what it leaves behind: three files in one folder.

    job.json      written by the worker, mode 0600 (the environment may hold a secret)
    runner.json   written by the runner once the command has started: who the runner and the command are
    result.json   written by the runner when no process of the command is left; its presence ends the run

Every write is atomic. `runner.lock` is held by the living runner, so two never run the same job.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.processes.identity import ProcessIdentity
from infra.processes.limits import ProcessLimits
from infra.processes.sandbox import Sandbox


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` by `text` in one step."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


@dataclass(frozen=True)
class Job:
    """A command to supervise. `marker` is the execution's folder (see `tree.MARKER`), put into the environment.

    `stdin`: a file that is its standard input; empty: none. `sandbox`: None runs it unconfined.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    marker: str
    limits: ProcessLimits
    stdin: str = ""
    sandbox: Sandbox | None = None

    def save(self, folder: Path) -> None:
        write_atomically(folder / "job.json", json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Job":
        data = json.loads((folder / "job.json").read_text())
        limits = ProcessLimits(**data.pop("limits"))
        walls: dict[str, Any] | None = data.pop("sandbox", None)
        sandbox = Sandbox.of(walls) if walls else None
        return cls(argv=tuple(data.pop("argv")), limits=limits, sandbox=sandbox, **data)


@dataclass(frozen=True)
class Started:
    """A run in progress. `started_at`: seconds since the epoch."""

    runner: ProcessIdentity
    command: ProcessIdentity | None
    started_at: float

    def save(self, folder: Path) -> None:
        write_atomically(folder / "runner.json", json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Started | None":
        try:
            data = json.loads((folder / "runner.json").read_text())
        except FileNotFoundError:
            return None
        command = data["command"] and ProcessIdentity(**data["command"])
        return cls(ProcessIdentity(**data["runner"]), command, data["started_at"])


@dataclass(frozen=True)
class Result:
    """How a run ended.

    `end`: exited | wall_limit | process_limit | memory_limit | cancelled | unstartable | runner_lost.
    `exit_code` is negative for a signal; `stdout_dropped` and `stderr_dropped` are bytes; `left_over` counts
    processes found alive when the command had ended, `survivors` those that could not be ended.
    """

    end: str
    exit_code: int | None = None
    seconds: float = 0.0
    ended_at: float = 0.0
    stdout_bytes: int = 0
    stdout_dropped: int = 0
    stderr_bytes: int = 0
    stderr_dropped: int = 0
    left_over: int = 0
    survivors: int = 0
    detail: str = ""

    def save(self, folder: Path) -> None:
        write_atomically(folder / "result.json", json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Result | None":
        try:
            return cls(**json.loads((folder / "result.json").read_text()))
        except FileNotFoundError:
            return None
