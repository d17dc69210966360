"""What every harness adapter offers, and the data that passes between it and the harness host.

The host executes a LaunchPlan as it stands: writes `files` into the private home (mode 0600), starts `argv` in `cwd`
with exactly `environment` and the standard input it names, in a session of its own, and asks `outcome` when it has
ended, with what the harness printed (its middle may be missing: output is capped).
The host's own reasons (wall limit, cancelled) outrank what `outcome` reads.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field

from infra.processes.capture import plain_text
from workflows.messages.base import Message
from workflows.messages.burst import HarnessChoice
from workflows.messages.execution import EndReason


class CallRole(StrEnum):
    """What a model call is for. `side` calls (titles, probes) are recorded, never trained."""

    MAIN = "main"
    SUB_AGENT = "sub-agent"
    MAIN_SUMMARY = "main-summary"
    SUB_AGENT_SUMMARY = "sub-agent-summary"
    SIDE = "side"


class LaunchContext(Message):
    """One execution, as an adapter needs to know it. All paths absolute."""

    execution: str
    instruction: str = Field(description="the exact text the agent gets")
    workspace: Path
    home: Path = Field(description="private to the execution, outside the workspace, kept until it is closed")
    endpoint: str = Field(description="proxy URL of this execution without a dialect's suffix, no slash at the end")
    token: str = Field(description="the execution's secret; the API key")
    model: str = "policy"
    context_tokens: int = Field(default=131_072, gt=0, description="the policy's context: prompt and answer")
    output_tokens: int = Field(default=8192, gt=0, description="output budget of one call")
    harness_root: Path = Field(description="where harnesses are installed, one folder each")
    choice: HarnessChoice = HarnessChoice()
    stdout: Path | None = Field(default=None, description="what it printed, once it has ended")


class LaunchPlan(Message):
    """How to start a harness. `environment` is complete: nothing is inherited."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str] = Field(default={}, description="path relative to the home -> text")
    stdin: str = Field(default="", description="which of `files` is its standard input; empty: no input")
    cwd: Path


class HarnessOutcome(Message):
    """What a harness says about its own end. `model_calls` is its count, None where it does not say; `detail`: cut,
    and without what no payload or database takes."""

    end: EndReason
    detail: Annotated[str, BeforeValidator(plain_text)] = ""
    model_calls: int | None = None


class HarnessAdapter(Protocol):
    """One harness."""

    name: str
    version: str
    """The exact version this adapter was made for."""
    dialect: str
    """What it speaks to the model: chat, responses, messages, or any."""

    @property
    def settings(self) -> Mapping[str, type]:
        """Its own settings in a burst file, by name and kind."""
        ...

    def installed(self, harness_root: Path) -> bool:
        """Whether the pinned version is there, whole."""
        ...

    def install(self, harness_root: Path) -> None:
        """Install the pinned version below `harness_root`; does nothing if it is there. Raises HarnessUnusable."""
        ...

    def check(self, choice: HarnessChoice, harness_root: Path) -> None:
        """Raises InvalidSpec for a setting it does not know, HarnessUnusable if it is not installed as pinned."""
        ...

    def launch(self, context: LaunchContext) -> LaunchPlan:
        """How to start it for one execution."""
        ...

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        """How it ended, by its own records first. `exit_code`: negative for a signal, None if it is not known."""
        ...

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        """What a model call is for, from the request as the harness sent it; header names in lower case."""
        ...
