"""claude-code 2.1.332, unmodified: Anthropic Messages, streamed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness_adapters.choices import checked
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.node_environment import NodeEnvironment
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable
from workflows.messages.execution import EndReason

_SETTINGS = {"max_turns": int}
_INSTRUCTION = "instruction.md"


class ClaudeCode:
    """Settings: `max_turns`."""

    name = "claude-code"
    version = "2.1.332"
    dialect = "messages"

    def environment_of(self, harness_root: Path) -> NodeEnvironment:
        return NodeEnvironment(harness_root / self.name, f"harness-{self.name}")

    def install(self, harness_root: Path) -> None:
        self.environment_of(harness_root).install()

    def check(self, choice: HarnessChoice, harness_root: Path) -> None:
        checked(choice, _SETTINGS)
        if not self.environment_of(harness_root).is_current():
            raise HarnessUnusable(f"{self.name} {self.version} is not installed; run: gyre harness install {self.name}")

    def launch(self, context: LaunchContext) -> LaunchPlan:
        settings = checked(context.choice, _SETTINGS)
        flags = ["-p", "--model", context.model, "--dangerously-skip-permissions"]
        flags += ["--output-format", "stream-json", "--verbose"]
        if "max_turns" in settings:
            flags += ["--max-turns", str(settings["max_turns"])]
        return LaunchPlan(
            argv=(str(self.environment_of(context.harness_root).binary("claude")), *flags),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "CLAUDE_CONFIG_DIR": str(context.home / ".claude"),
                "ANTHROPIC_BASE_URL": context.endpoint,
                "ANTHROPIC_API_KEY": context.token,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                "DISABLE_AUTOUPDATER": "1",
                "DISABLE_TELEMETRY": "1",
                "DISABLE_ERROR_REPORTING": "1",
                "IS_SANDBOX": "1",
                "API_TIMEOUT_MS": "86400000",
                "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "86400000",
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(context.output_tokens),
            },
            files={_INSTRUCTION: context.instruction},
            stdin=_INSTRUCTION,
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        return HarnessOutcome(end=EndReason.EXITED)

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        return CallRole.MAIN
