"""The workload file: every execution of a comparison, and the cells, batches and rates it runs on.

An execution is turns: a message of so many tokens to the model, an answer of so many tokens, so many seconds of a tool.
Groups are in order of dispatch. Two runs of a file differ in their policy alone.
"""

from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from workflows.messages.base import Message
from workflows.messages.errors import InvalidSpec

TEMPLATE_TOKENS = 16
"""Of a turn beside the message's filler and the answer: the template's markers and roles, the words of the request."""
FILES = Path(__file__).parent / "workloads"


class Turn(Message):
    """One model call and the tool after it."""

    asked: int = Field(ge=1, description="tokens of the message, about")
    answer: int = Field(ge=2, description="tokens sampled, the end of turn among them")
    tool_seconds: float = Field(ge=0)


class Execution(Message):
    """One harness run. `reward` differs within a group: one without signal would not be trained."""

    turns: tuple[Turn, ...] = Field(min_length=1)
    reward: float = Field(ge=0, le=1)

    def seconds(self, tokens_per_second: float) -> float:
        """On an idle engine, without anything that the system adds."""
        return sum(turn.answer / tokens_per_second + turn.tool_seconds for turn in self.turns)

    @property
    def tokens(self) -> int:
        """Of its one path, about: what is trained on."""
        return sum(turn.asked + turn.answer + TEMPLATE_TOKENS for turn in self.turns)


class Workload(Message):
    """`executions`: by group and member. `bursts` of `steps` updates each; `carry_over` is phi."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")
    about: str
    seed: int = Field(ge=0)
    cells: int = Field(ge=1, le=64)
    slots: int = Field(ge=1, description="of one cell")
    groups_per_step: int = Field(ge=1, description="B")
    executions_per_group: int = Field(ge=2, description="N")
    steps: int = Field(ge=1, description="mu")
    bursts: int = Field(default=1, ge=1)
    carry_over: float = Field(default=0.0, ge=0, description="phi")
    tokens_per_second: float = Field(gt=0, description="of one request at an engine")
    training_tokens_per_second: float = Field(gt=0, description="of one cell")
    update_seconds: float = Field(default=0.0, ge=0)
    phases: tuple[int, ...] = Field(default=(), description="updates after which the workload changes")
    slower: float = Field(default=1.0, gt=0, description="all that takes time takes so many times as long as drawn")
    groups: tuple[tuple[Execution, ...], ...]

    @model_validator(mode="after")
    def _is_complete(self) -> "Workload":
        wanted = self.groups_per_step * self.steps * self.bursts
        if len(self.groups) != wanted:
            raise ValueError(f"groups: {len(self.groups)}, the updates consume {wanted}")
        for index, group in enumerate(self.groups):
            if len(group) != self.executions_per_group:
                raise ValueError(f"groups.{index}: {len(group)} executions, not {self.executions_per_group}")
            if len({execution.reward for execution in group}) < 2:
                raise ValueError(f"groups.{index}: equal rewards, it would not be trained")
        return self

    def stretched(self, factor: float) -> "Workload":
        """The same executions and tokens, every second of theirs `factor` as long."""

        def later(one: Execution) -> Execution:
            turns = [turn.model_copy(update={"tool_seconds": turn.tool_seconds * factor}) for turn in one.turns]
            return one.model_copy(update={"turns": tuple(turns)})

        return self.model_copy(
            update={
                "slower": self.slower * factor,
                "tokens_per_second": self.tokens_per_second / factor,
                "training_tokens_per_second": self.training_tokens_per_second / factor,
                "update_seconds": self.update_seconds * factor,
                "groups": tuple(tuple(later(one) for one in group) for group in self.groups),
            }
        )

    @property
    def executions(self) -> int:
        return len(self.groups) * self.executions_per_group

    @property
    def updates(self) -> int:
        return self.steps * self.bursts

    @property
    def staleness(self) -> float:
        """E[d] that the settings promise."""
        return self.carry_over + (self.steps - 1) / 2

    @property
    def longest_seconds(self) -> float:
        return max(one.seconds(self.tokens_per_second) for group in self.groups for one in group)

    def training_seconds(self, group: int) -> float:
        """Of one cell on a whole group, about."""
        return sum(one.tokens for one in self.groups[group]) / self.training_tokens_per_second


def load_workload(path: Path) -> Workload:
    """Read a workload file. Raises InvalidSpec naming what is wrong."""
    try:
        return Workload.model_validate_json(path.read_text())
    except FileNotFoundError:
        raise InvalidSpec(f"no such workload file: {path}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidSpec(f"{path}: {first['msg']}", field=field or None) from None


def save_workload(path: Path, workload: Workload) -> None:
    """Write a workload file, one group a line, so that a change of one is seen as such."""
    head = workload.model_dump_json(exclude={"groups"})
    groups = ",\n".join(
        "[" + ",".join(execution.model_dump_json() for execution in group) + "]" for group in workload.groups
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-1]},"groups":[\n{groups}\n]}}\n')


def workload_files(name: str) -> dict[int, Path]:
    """Seed -> file of the workloads that lie beside this module under `name`."""
    return {int(path.stem.rsplit("-", 1)[1]): path for path in sorted(FILES.glob(f"{name}-[0-9]*.json"))}
