"""Groups: admission, and the micro-steps they are packed into."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from workflows.messages.artifacts import ArtifactRef
from workflows.messages.base import Message
from workflows.messages.burst import Training


class NoSignal(StrEnum):
    """Why a group is admitted without targets."""

    EQUAL_REWARDS = "equal_rewards"
    TOO_FEW_VALID = "too_few_valid"
    NO_TARGETS = "no_targets"


class AdmitGroup(Message):
    """All executions of the group are closed; freeze advantages and T_i."""

    run: str
    burst: str
    group: int
    executions: tuple[str, ...]
    training: Training
    version: int = Field(description="version at admission, for the staleness bound")


class AdmittedGroup(Message):
    """A ready group. `sequence` is its place in the durable order of admission."""

    burst: str
    group: int
    sequence: int
    valid: int = Field(description="valid executions; enters V only if there is signal")
    no_signal: NoSignal | None = None
    target_tokens: int = 0
    mean_reward: float | None = None
    version: int = Field(default=0, description="published version at admission")
    staleness: float | None = Field(default=None, description="versions since dispatch, at admission; group mean")


class PackGroup(Message):
    """Cut one admitted group of a batch into micro-steps."""

    run: str
    batch: str
    burst: str
    group: int
    first_index: int = Field(description="index of the group's first micro-step within the batch")
    token_budget: int
    temperature: float
    layout: Literal["flat", "tree"] = "flat"


class MicroStep(Message):
    """One packed piece of a batch; its payload is a safetensors artifact."""

    batch: str
    index: int
    group: str
    payload: ArtifactRef
    tokens: int
    target_tokens: int


class PackedGroup(Message):
    group: str
    micro_steps: tuple[MicroStep, ...]
