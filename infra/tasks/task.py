"""One task folder in the Harbor layout, read and checked.

    task.toml          [agent] timeout_sec, [verifier] timeout_sec, [environment] resources, allow_internet (for the
                       tests; the agent has the proxy alone), free [metadata]
    instruction.md     the exact text the agent gets
    environment/       the starting state, or a Dockerfile
    tests/test.sh      and its helpers: put in place only after the agent is done
    solution/solve.sh  optional; a run of it must score 1

Unknown keys of task.toml are left alone: public task sets carry many. It runs nothing and knows no harness.
"""

import shutil
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.errors import InvalidTask

_CONTAINER_FILES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "compose.yaml")
_UNREADABLE = (IsADirectoryError, PermissionError)
"""What no retry changes."""
_SUFFIXES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


class Task(Message):
    """A task that can be run. Optional limits are None where task.toml does not say."""

    folder: Path
    name: str
    instruction: str
    agent_seconds: float | None = None
    verifier_seconds: float | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    internet: bool = Field(default=False, description="whether its tests may use the machine's network")
    metadata: dict[str, Any] = {}
    container: str = Field(default="", description="why it needs a container runtime; empty: it does not")

    @property
    def environment(self) -> Path:
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path | None:
        script = self.folder / "solution" / "solve.sh"
        return script if script.is_file() else None

    def write_workspace(self, workspace: Path) -> None:
        """Make `workspace` the starting state, replacing what is there; file modes and links are kept.

        Raises InvalidTask if the task needs a container runtime.
        """
        if self.container:
            raise InvalidTask(self.container, field="environment")
        shutil.rmtree(workspace, ignore_errors=True)
        shutil.copytree(self.environment, workspace, symlinks=True)


def load_task(folder: Path, *, container_runtime: bool = False) -> Task:
    """Read and check a task folder. Raises InvalidTask naming the file and key that is wrong; without a
    `container_runtime` also for a task that needs one."""
    folder = folder.absolute()
    if not folder.is_dir():
        raise InvalidTask(f"no such folder: {folder}")
    table = _table(folder / "task.toml")
    for needed in ("environment", "tests"):
        if not (folder / needed).is_dir():
            raise InvalidTask(f"missing in {folder}", field=f"{needed}/")
    if not (folder / "tests" / "test.sh").is_file():
        raise InvalidTask(f"missing in {folder}", field="tests/test.sh")
    environment = _section(table, "environment")
    task = Task(
        folder=folder,
        name=folder.name,
        instruction=_instruction(folder / "instruction.md"),
        agent_seconds=_positive(_section(table, "agent"), "timeout_sec", "agent"),
        verifier_seconds=_positive(_section(table, "verifier"), "timeout_sec", "verifier"),
        cpus=_positive(environment, "cpus", "environment"),
        memory_mb=_memory_mb(environment),
        internet=_yes(environment, "allow_internet", "environment"),
        metadata=_section(table, "metadata"),
        container=_container(folder, environment),
    )
    if task.container and not container_runtime:
        raise InvalidTask(task.container, field="environment")
    return task


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidTask(f"missing in {path.parent}", field="task.toml") from None
    except _UNREADABLE as error:
        raise InvalidTask(f"cannot be read: {error}", field="task.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidTask(f"is not TOML: {error}", field="task.toml") from None


def _section(table: dict[str, Any], name: str) -> dict[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise InvalidTask(f"expected a table, got {section!r}", field=f"task.toml.{name}")
    return section


def _positive(section: dict[str, Any], key: str, name: str) -> float | None:
    value = section.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InvalidTask(f"expected a number above 0, got {value!r}", field=f"task.toml.{name}.{key}")
    return float(value)


def _yes(section: dict[str, Any], key: str, name: str) -> bool:
    value = section.get(key, False)
    if not isinstance(value, bool):
        raise InvalidTask(f"expected true or false, got {value!r}", field=f"task.toml.{name}.{key}")
    return value


def _memory_mb(environment: dict[str, Any]) -> int | None:
    """`memory_mb = 512`, or the older `memory = "2G"`."""
    if "memory" not in environment:
        number = _positive(environment, "memory_mb", "environment")
        return None if number is None else round(number)
    value = environment["memory"]
    text = value.upper().removesuffix("B").removesuffix("I") if isinstance(value, str) else ""
    if text[:-1].isdigit() and text[-1:] in _SUFFIXES:
        return round(int(text[:-1]) * _SUFFIXES[text[-1]])
    raise InvalidTask(f'expected a size such as "2G", got {value!r}', field="task.toml.environment.memory")


def _instruction(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise InvalidTask(f"missing in {path.parent}", field="instruction.md") from None
    except _UNREADABLE as error:
        raise InvalidTask(f"cannot be read: {error}", field="instruction.md") from None
    except UnicodeDecodeError as error:
        raise InvalidTask(f"is not UTF-8: {error}", field="instruction.md") from None
    if not text.strip():
        raise InvalidTask("is empty", field="instruction.md")
    return text


def _container(folder: Path, environment: dict[str, Any]) -> str:
    for name in _CONTAINER_FILES:
        if (folder / "environment" / name).is_file():
            return f"environment/{name} needs a container runtime, and none is configured"
    if environment.get("docker_image"):
        return "docker_image needs a container runtime, and none is configured"
    return ""
