"""Any command that talks to an endpoint named by its environment, in any of the dialects.

The command is split like a shell would and run as it is, without a shell. It gets OPENAI_BASE_URL, OPENAI_API_KEY,
OPENAI_MODEL, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, GYRE_INSTRUCTION_FILE and GYRE_WORKSPACE; exit code 0 counts as
submitted.
"""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness_adapters.choices import checked
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable, InvalidSpec
from workflows.messages.execution import EndReason

BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "dumb"}
"""What every harness and every command it runs may rely on; none of our own variables is in it."""


class GenericCommand:
    """Setting `command`: the command line."""

    name = "command"
    version = "any"
    dialect = "any"
    settings = {"command": str}

    def installed(self, harness_root: Path) -> bool:
        return True

    def install(self, harness_root: Path) -> None:
        """Nothing to install: the command is the user's."""

    def check(self, choice: HarnessChoice, harness_root: Path) -> None:
        checked(choice, self.settings)
        argv = _argv(choice)
        if shutil.which(argv[0], path=BASE_ENVIRONMENT["PATH"]) is None:
            raise HarnessUnusable(f"no such command: {argv[0]}")

    def launch(self, context: LaunchContext) -> LaunchPlan:
        return LaunchPlan(
            argv=_argv(context.choice),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "OPENAI_BASE_URL": f"{context.endpoint}/v1",
                "OPENAI_API_KEY": context.token,
                "OPENAI_MODEL": context.model,
                "ANTHROPIC_BASE_URL": context.endpoint,
                "ANTHROPIC_API_KEY": context.token,
                "GYRE_INSTRUCTION_FILE": str(context.home / "instruction.md"),
                "GYRE_WORKSPACE": str(context.workspace),
            },
            files={"instruction.md": context.instruction},
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        if exit_code == 0:
            return HarnessOutcome(end=EndReason.SUBMITTED)
        if exit_code is None:
            return HarnessOutcome(end=EndReason.EXITED, detail="its exit code is not known")
        return HarnessOutcome(end=EndReason.CRASHED, detail=f"exit code {exit_code}")

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        return CallRole.MAIN


def _argv(choice: HarnessChoice) -> tuple[str, ...]:
    command = choice.settings.get("command")
    try:
        argv = tuple(shlex.split(command)) if isinstance(command, str) else ()
    except ValueError as error:
        raise InvalidSpec(str(error), field="harness.settings.command") from None
    if not argv:
        raise InvalidSpec("expected a command line", field="harness.settings.command")
    return argv
