"""What is simulated: a scenario file (TOML or JSON), validated, every wrong field named.

Times are seconds. Sizes of the whole pool (`slots`, `training.step_seconds`) do not change when the pool is cut into
more or fewer cells, so that variants with different cells are compared on equal hardware.
"""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from infra.settings.spelling import problem_text
from workflows.messages.base import Message
from workflows.messages.errors import InvalidSpec
from workflows.messages.policies import Bounds, PolicyName, ThroughputSettings
from workflows.policy.staleness import carry_over_for

Label = Annotated[str, StringConstraints(min_length=1, max_length=60)]


class Durations(Message):
    """How long an execution takes on an idle engine: a log-normal factor of its query times one of its own.

    `mean_seconds` is the mean without the time limit. An execution ends at `timeout_seconds` after its launch.
    """

    mean_seconds: float = Field(default=3600.0, gt=0)
    query_sigma: float = Field(default=0.4, ge=0, le=4)
    execution_sigma: float = Field(default=0.5, ge=0, le=4)
    timeout_seconds: float | None = Field(default=None, gt=0)
    model_share: float = Field(default=0.6, ge=0, le=1, description="model time of an execution on an idle engine")
    model_share_spread: float = Field(default=0.0, ge=0, le=0.5, description="half the width of a uniform spread")


class Engines(Message):
    """Rollout. `slowdown`: how much slower the model is on a full engine; beyond its slots requests take turns.

    `backlog_seconds`: how long the first launches keep a control plane from anything else. `harness_slots` and
    `evaluator_slots` (None: as many as needed) are processor slots: `throughput` may move them to each other when both
    are given.
    """

    slots: int = Field(default=64, ge=1, description="execution slots of the whole pool")
    standalone_slots: int = Field(default=0, ge=0, description="of engines that never train")
    slowdown: float = Field(default=0.5, ge=0)
    launch_seconds: float = Field(default=0.0, ge=0, description="starting an execution; one after the other")
    backlog_seconds: float = Field(default=0.0, ge=0, description="until then no group is ready and no cell moves")
    evaluation_seconds: float = Field(default=0.0, ge=0, description="scoring an execution, after its harness")
    harness_slots: int | None = Field(default=None, ge=1, description="harnesses at once")
    evaluator_slots: int | None = Field(default=None, ge=1, description="evaluations at once")


class TrainingModel(Message):
    """One optimizer step: `step_seconds` of forward and backward if the whole pool trained, then the update.

    What a control plane adds: `admission_seconds` from a group's last execution to a ready group, `opening_seconds`
    from an update to the next batch of its burst, `pickup_seconds` from a batch's opening to its first micro-step,
    `claim_seconds` from one micro-step of a cell to its next.
    """

    step_seconds: float = Field(default=600.0, gt=0)
    update_seconds: float = Field(default=10.0, ge=0)
    admission_seconds: float = Field(default=0.0, ge=0)
    opening_seconds: float = Field(default=0.0, ge=0)
    pickup_seconds: float = Field(default=0.0, ge=0)
    claim_seconds: float = Field(default=0.0, ge=0)
    micro_steps_per_group: int = Field(default=4, ge=1)
    follows_duration: bool = Field(default=True, description="longer executions are more tokens to train on")


class Transitions(Message):
    """Role changes; published averages for 4-node cells of a 122B model."""

    to_training_seconds: float = Field(default=8.52, ge=0)
    to_rollout_seconds: float = Field(default=3.46, ge=0)
    join_seconds: float = Field(default=0.0, ge=0, description="from then to a cell's first micro-step")
    reroute_seconds: float = Field(default=2.0, ge=0, description="pause of an execution whose engine leaves")
    publish_seconds: float = Field(default=0.0, ge=0)
    boundary_seconds: float = Field(default=0.0, ge=0, description="from the end of a burst to the next dispatch")
    first_batch_seconds: float = Field(default=0.0, ge=0, description="from a dispatch to the burst's first batch")


class Phase(Message):
    """From optimizer step `from_step` on, durations and training times are scaled."""

    from_step: int = Field(ge=0)
    duration_scale: float = Field(default=1.0, gt=0)
    training_scale: float = Field(default=1.0, gt=0)


class Telemetry(Message):
    """`noise`: standard deviation of the logarithm of everything that is measured."""

    noise: float = Field(default=0.0, ge=0, le=1)
    sample_seconds: float = Field(default=60.0, gt=0, description="how often the pipeline is looked at")


class Variant(Message):
    """One policy and how it is set. Empty settings are the scenario's. `split` is the cells that train."""

    label: Label
    policy: PolicyName
    streaming: bool = True
    shuffle: bool = Field(default=False, description="without streaming: all groups of a burst before its first step")
    shares: Literal["fixed", "claimed"] = Field(
        default="fixed",
        description="without streaming: equal shares of a batch's groups, as published, or claimed, as in a live run",
    )
    cells: int | None = Field(default=None, ge=1)
    split: int | None = Field(default=None, ge=1)
    burst_steps: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _shuffles_only_what_it_has(self) -> "Variant":
        if self.shuffle and self.streaming:
            raise ValueError("shuffle: needs streaming = false, a stream has no order to shuffle beforehand")
        return self


DEFAULT_VARIANTS = (
    Variant(label="waterlevel", policy="waterlevel"),
    Variant(label="throughput", policy="throughput"),
    Variant(label="lending", policy="lending", streaming=False),
    Variant(label="async", policy="async", streaming=False),
    Variant(label="colocate", policy="colocate", streaming=False),
)


class Scenario(Message):
    """A pool, a workload and the variants to compare. `staleness` is E[d]; phi follows from it and `burst_steps`."""

    name: str = "scenario"
    seed: int = Field(default=0, ge=0)
    nodes: int = Field(default=32, ge=1)
    cells: int = Field(default=8, ge=1, le=512)
    groups_per_step: int = Field(default=8, ge=1, description="B")
    executions_per_group: int = Field(default=8, ge=1, description="N")
    steps: int = Field(default=48, ge=1, description="optimizer steps in all")
    burst_steps: int = Field(default=1, ge=1, description="mu: optimizer steps per burst")
    staleness: float = Field(default=1.0, ge=0, description="E[d]")
    split: int = Field(default=0, ge=0, description="training cells of a fixed split; 0: the best one is searched")
    supply_fraction: float = Field(default=0.25, ge=0, le=1)
    hold_seconds: float = Field(default=10.0, ge=0)
    bounds: Bounds = Bounds()
    durations: Durations = Durations()
    engines: Engines = Engines()
    training: TrainingModel = TrainingModel()
    transitions: Transitions = Transitions()
    phases: tuple[Phase, ...] = ()
    telemetry: Telemetry = Telemetry()
    throughput: ThroughputSettings = ThroughputSettings()
    variants: tuple[Variant, ...] = Field(default=DEFAULT_VARIANTS, min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> "Scenario":
        labels = [variant.label for variant in self.variants]
        if len(set(labels)) != len(labels):
            raise ValueError("variants: labels must differ")
        for variant in self.variants:
            cells = variant.cells or self.cells
            if self.engines.slots < cells:
                raise ValueError(f"engines.slots: {self.engines.slots} slots for {cells} cells, at least 1 each")
            if (variant.split or self.split) >= cells > 1:
                raise ValueError(f"split: leaves none of {cells} cells to rollout")
            steps = variant.burst_steps or self.burst_steps
            if carry_over_for(self.staleness, steps) < 0:
                raise ValueError(f"staleness: {self.staleness:g} is below what {steps} steps a burst cause, by phi = 0")
        if self.split >= self.cells > 1:
            raise ValueError(f"split: leaves none of {self.cells} cells to rollout")
        return self

    def settled(self, variant: Variant) -> "Settled":
        """The numbers one simulation runs with."""
        cells, steps = variant.cells or self.cells, variant.burst_steps or self.burst_steps
        return Settled(
            cells=cells,
            burst_steps=steps,
            carry_over=carry_over_for(self.staleness, steps),
            split=min(variant.split or self.split or max(1, cells // 2), max(1, cells - 1)),
        )


class Settled(Message):
    """`carry_over` is phi."""

    cells: int
    burst_steps: int
    carry_over: float
    split: int


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file, JSON by its suffix, else TOML. Raises InvalidSpec naming each wrong field."""
    try:
        text = path.read_text()
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return Scenario.model_validate(values)
    except FileNotFoundError:
        raise InvalidSpec(f"no such scenario file: {path}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        raise InvalidSpec(problem_text(Scenario, error, path)) from None
