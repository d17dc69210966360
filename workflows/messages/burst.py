"""The files people write: a burst, a campaign.

Units are in the names; an unknown or wrong field is named in the error.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from workflows.messages.base import Message, Written
from workflows.messages.loss import LossSettings
from workflows.messages.policies import PolicySettings

PublishMode = Literal["recompute", "keep_kv"]
"""How serving engines get a new version. `recompute`: their requests are cut and go on with what they have said;
`keep_kv`: they are paused in place and go on over the KV they hold, which is recorded."""

MOST_GROUPS, MOST_EXECUTIONS = 1000, 20_000
"""Dispatched at once: more would not fit the payloads that carry the scheduler's books."""
MOST_SETTINGS = 16_384
"""Characters of a harness' settings: every execution carries them."""

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]


class Purpose(StrEnum):
    TRAIN = "train"
    EVALUATE = "evaluate"


class Sampling(Written):
    """What the proxy imposes on every call, whatever the harness asks for."""

    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1, description="-1: no limit")
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=2)
    max_call_tokens: int = Field(default=256, gt=0, description="output budget of one call; a smaller request wins")

    @property
    def penalises(self) -> bool:
        """Whether what was said changes what may be said."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)


class HarnessChoice(Written):
    """Which harness runs, and its own settings (validated by its adapter)."""

    name: str = "mini-swe-agent"
    client: Literal["thin", "stock"] = "thin"
    settings: dict[str, str | int | float | bool] = {}

    @field_validator("settings")
    @classmethod
    def _small(cls, settings: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        if sum(len(name) + len(str(value)) for name, value in settings.items()) > MOST_SETTINGS:
            raise ValueError(f"at most {MOST_SETTINGS} characters altogether; use a file")
        return settings


class Limits(Written):
    """Limits of one execution. When one is hit, what is left in the workspace is scored."""

    wall_seconds: float = Field(default=300, gt=0)
    model_calls: int = Field(default=64, gt=0)
    grace_seconds: float = Field(default=5, gt=0, description="from TERM to KILL")
    evaluator_seconds: float = Field(default=60, gt=0, le=3000)
    evaluator_attempts: int = Field(default=2, ge=1, le=100)
    output_bytes: int = Field(default=1_000_000, gt=0, description="kept of a harness' output")
    memory_bytes: int = Field(default=2 << 30, gt=0)
    processes: int = Field(default=256, gt=0)
    file_bytes: int = Field(default=256 << 20, gt=0, description="largest file an agent may write")


Role = Literal["main", "sub-agent", "main-summary", "sub-agent-summary"]
"""Roles of calls that may be trained."""


class Selection(Written):
    """Which paths of an execution's tree are trained."""

    role_priority: tuple[Role, ...] = Field(
        default=("main", "sub-agent", "main-summary", "sub-agent-summary"),
        min_length=1,
        description="highest class first; a role left out is recorded, never trained",
    )
    most_paths: int | None = Field(default=5, ge=1, description="J_max: paths of one execution; null: all of them")

    @field_validator("role_priority")
    @classmethod
    def _each_once(cls, roles: tuple[Role, ...]) -> tuple[Role, ...]:
        if len(set(roles)) != len(roles):
            raise ValueError("names a role twice")
        return roles


class Training(LossSettings):
    """One optimizer step."""

    learning_rate: float = Field(default=2e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    max_grad_norm: float = Field(default=1.0, gt=0)
    token_budget: int = Field(default=2048, gt=0, description="tokens of one micro-step")
    layout: Literal["flat", "tree"] = Field(default="flat", description="tree: what paths share is computed once")
    selection: Selection = Selection()
    max_staleness: int | None = Field(
        default=None, ge=0, description="versions from an execution's oldest token to its admission; older: left out"
    )
    refill: bool = Field(default=False, description="no-signal groups do not take a place in the batch")

    @property
    def loss(self) -> LossSettings:
        """The part of these settings that a micro-step needs."""
        return LossSettings.model_validate({name: getattr(self, name) for name in LossSettings.model_fields})


class BurstSpec(Written):
    """One burst: a dispatch quota, then `steps` optimizer steps, then a publish.

    Written as burst.json and given to ``temporal workflow start --type Burst``.
    """

    run: Slug
    name: Slug
    purpose: Purpose = Purpose.TRAIN
    tasks: str = Field(
        min_length=1,
        max_length=1000,
        description="folder of tasks in the Harbor layout, or a name the fleet file maps to one",
    )
    split: Literal["train", "heldout"] = "train"
    seed: int = Field(default=0, ge=0)
    groups_per_step: int = Field(default=4, ge=0, description="B: groups per optimizer step")
    executions_per_group: int = Field(default=8, ge=1, description="N: executions per group")
    steps: int = Field(default=2, ge=1, le=1000, description="mu: optimizer steps before the publish")
    carry_over: float = Field(default=0.0, ge=0, description="phi: left outstanding, in units of B")
    staleness: float | None = Field(default=None, ge=0, description="E[d] to aim at; phi then follows from it")
    final: bool = Field(default=False, description="a campaign's last burst: no carry-over")
    follows: bool = Field(default=False, description="another burst follows at once; set by campaigns")
    sampling: Sampling = Sampling()
    harness: HarnessChoice = HarnessChoice()
    limits: Limits = Limits()
    policy: PolicySettings = PolicySettings()
    training: Training = Training()
    no_artifact: Literal["exclude", "zero"] = Field(
        default="exclude", description="an execution in which nothing ever ran: left out, or scored 0"
    )
    publish: PublishMode = "recompute"
    on_cancel: Literal["finish_batch", "abandon_batch"] = "abandon_batch"

    @model_validator(mode="after")
    def _fits_its_purpose(self) -> "BurstSpec":
        if self.quota > MOST_GROUPS or self.quota * self.executions_per_group > MOST_EXECUTIONS:
            raise ValueError(
                f"groups_per_step, steps, carry_over, staleness, executions_per_group: {self.quota} groups of "
                f"{self.executions_per_group} at once, at most {MOST_GROUPS} groups and {MOST_EXECUTIONS} executions"
            )
        if self.purpose is Purpose.EVALUATE and self.groups_per_step < 1:
            raise ValueError("groups_per_step: an evaluation needs at least 1 task")
        if self.purpose is Purpose.TRAIN and (self.sampling.top_p != 1 or self.sampling.top_k != -1):
            raise ValueError("sampling.top_p, sampling.top_k: training needs the whole distribution (1 and -1)")
        if self.purpose is Purpose.TRAIN and self.sampling.penalises:
            raise ValueError(
                "sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty: training needs "
                "the log-probs of the distribution sampled from, and engines report them without penalties"
            )
        if self.purpose is Purpose.TRAIN and self.sampling.temperature == 0:
            raise ValueError("sampling.temperature: training needs a temperature above 0")
        if self.staleness is not None and self.carry_over:
            raise ValueError("carry_over: follows from staleness; give one of the two")
        if self.phi < 0:
            raise ValueError(f"staleness: {self.staleness} is below what {self.steps} steps cause without carry-over")
        return self

    @property
    def phi(self) -> float:
        """Groups left outstanding at a burst's end, in units of B: as given, or what E[d] needs (policy/staleness)."""
        return self.carry_over if self.staleness is None else self.staleness - (self.steps - 1) / 2

    @property
    def expected_staleness(self) -> float:
        """E[d] = phi + (mu - 1) / 2, the mean staleness in steady state."""
        return self.phi + (self.steps - 1) / 2

    @property
    def quota(self) -> int:
        """Groups outstanding after the boundary's top-up, (phi + mu) * B; an evaluation dispatches B groups."""
        if self.purpose is Purpose.EVALUATE:
            return self.groups_per_step
        carry = 0.0 if self.final else self.phi
        return round((carry + self.steps) * self.groups_per_step)


_CAMPAIGN_NAME = 36


class CampaignSpec(Written):
    """Burst after burst with the same settings; each one's name is derived from the campaign's."""

    run: Slug
    name: Slug
    bursts: int = Field(ge=1, le=1000)
    burst: BurstSpec

    @model_validator(mode="after")
    def _same_run(self) -> "CampaignSpec":
        if len(self.name) > _CAMPAIGN_NAME:
            raise ValueError(f"name: at most {_CAMPAIGN_NAME} characters; its bursts' names add four")
        if self.burst.run != self.run:
            raise ValueError(f"burst.run: is {self.burst.run!r}, must be the campaign's run {self.run!r}")
        return self

    def nth(self, index: int) -> BurstSpec:
        """Burst `index` (0-based) of this campaign."""
        last = index == self.bursts - 1
        return self.burst.model_copy(update={"name": f"{self.name}-{index:03d}", "final": last, "follows": not last})


class StepReport(Message):
    """What one optimizer step did."""

    step: int
    version_before: int
    version_after: int
    groups: int
    groups_with_signal: int
    executions_valid: int
    target_tokens: int
    mean_reward: float | None
    mean_staleness: float | None
    cells: dict[str, int] = Field(description="cell -> micro-steps that counted")
    grad_norm: float | None


class BurstReport(Message):
    """The result of a Burst workflow."""

    run: str
    burst: str
    purpose: Purpose
    version: int
    steps: tuple[StepReport, ...] = ()
    executions: int = 0
    executions_valid: int = 0
    mean_reward: float | None = None
    mean_staleness: float | None = Field(default=None, description="as measured, over groups; E[d] is its aim")
    expected_staleness: float | None = None
    cancelled: bool = False
