"""The fleet file: TOML, validated, every wrong field named."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from infra.settings.spelling import problem_text
from workflows.messages.base import Message
from workflows.messages.burst import Slug
from workflows.messages.errors import InvalidSpec
from workflows.messages.fleet import CellSpec
from workflows.messages.policies import Bounds


class PacedEngine(Message):
    """The paced engine: seeded tokens at a set rate. Results made with it say so."""

    tokens_per_second: float = Field(default=200.0, gt=0, description="of one request")
    prefill_tokens_per_second: float = Field(default=20000.0, gt=0)
    script: str = Field(default="", description="file of scripted replies; empty: seeded tokens")


class PacedTrainer(Message):
    """The paced trainer: computes nothing, takes its time by tokens. Results made with it say so."""

    tokens_per_second: float = Field(default=2000.0, gt=0, description="of one cell, forward and backward")
    update_seconds: float = Field(default=0.0, ge=0, description="of one optimizer update, beside what it really takes")


class Fleet(Message):
    """A local stack: which cells, which model, where things are kept.

    `model` and values of `task_sets` are folders, relative to the checkout unless absolute.
    """

    run: Slug = "local"
    model: str = "infra/demo/policy"
    context_tokens: int = Field(default=4096, gt=0)
    cells: tuple[CellSpec, ...] = (CellSpec(index=0), CellSpec(index=1), CellSpec(index=2))
    paced: PacedEngine = PacedEngine()
    trainer: Literal["megatron", "paced"] = Field(default="megatron", description="what trains, in every cell")
    paced_trainer: PacedTrainer = PacedTrainer()
    database_url: str = Field(default="", description="empty: a SQLite file in the run folder")
    object_store_url: str = Field(default="", description="empty: a folder in the run folder")
    temporal: str = Field(default="dev", pattern="^(dev|environment)$", description="or TEMPORAL_* variables")
    harness_slots: int = Field(default=16, ge=1, description="harness processes at once")
    evaluator_slots: int = Field(
        default=0, ge=0, description="graders at once, which `throughput` may share out with harnesses; 0: no limit"
    )
    bounds: Bounds = Bounds()
    reboots: bool = Field(
        default=True, description="a cell whose role change fails for good boots anew, once, before it waits for you"
    )
    max_cells: int = Field(default=64, ge=1, description="how large offers may make the run")
    isolation: Literal["auto", "off", "required"] = Field(
        default="auto", description="of harnesses; auto: whatever this machine allows, which `gyre doctor` shows"
    )
    isolate_gradings: bool = Field(
        default=True, description="false: a task's tests run outside the walls, to install packages on this machine"
    )
    gradings_may_use_network: bool = Field(
        default=False,
        description="true: tests of a task with allow_internet share this machine's network, its loopback too; "
        "false: a burst with such a task is refused",
    )
    task_sets: dict[str, str] = {"demo": "var/demo/tasks"}
    training_threads: int = Field(default=1, ge=1, description="of each training process: a stage is one")
    combine: Literal["reads", "groups"] = Field(
        default="reads", description="how the core gets gradients: one-sided reads, or communication groups by prefix"
    )
    weights_folder: str = Field(default="/dev/shm", description="memory-backed storage for published weights")
    kv_handoff: bool = True
    kv_host_tokens: int = Field(default=65536, ge=0, description="host pool of the KV linker, in tokens")
    keep_checkpoints: int = Field(default=3, ge=1)
    keep_workspaces: bool = Field(default=True, description="of closed executions, with their logs")

    @model_validator(mode="after")
    def _cells_are_numbered(self) -> "Fleet":
        if [cell.index for cell in self.cells] != list(range(len(self.cells))) or not self.cells:
            raise ValueError("cells: indices must be 0, 1, 2, ... in order, cell 0 being the core")
        if not self.cells[0].trains:
            raise ValueError("cells.0.trains: the core must train")
        if self.bounds.min_rollout_cells >= len(self.cells):
            raise ValueError(f"bounds.min_rollout_cells: leaves none of {len(self.cells)} cells to train")
        if self.bounds.min_training_cells > sum(cell.trains for cell in self.cells):
            raise ValueError("bounds.min_training_cells: more than there are cells that train")
        if self.trainer == "paced" and self.combine == "groups":
            raise ValueError('combine: a paced trainer takes part in no groups; "reads" is what it can')
        return self


def load_fleet(path: Path) -> Fleet:
    """Read a fleet file. Raises InvalidSpec naming each wrong field."""
    try:
        return Fleet.model_validate(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise InvalidSpec(f"no such fleet file: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise InvalidSpec(problem_text(Fleet, error, path)) from None
