"""codex 0.171.0, unmodified: OpenAI Responses, streamed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness_adapters.choices import checked
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.node_environment import NodeEnvironment, node
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable
from workflows.messages.execution import EndReason

_SETTINGS = {"context_tokens": int, "compact_at_tokens": int}
_INSTRUCTION = "instruction.md"
_PATIENT_MS = 86_400_000


class Codex:
    """Settings: `context_tokens`, the context it believes in; `compact_at_tokens`, where it summarises."""

    name = "codex"
    version = "0.171.0"
    dialect = "responses"

    def environment_of(self, harness_root: Path) -> NodeEnvironment:
        return NodeEnvironment(harness_root / self.name, f"harness-{self.name}")

    def install(self, harness_root: Path) -> None:
        self.environment_of(harness_root).install()

    def check(self, choice: HarnessChoice, harness_root: Path) -> None:
        checked(choice, _SETTINGS)
        if not self.environment_of(harness_root).is_current():
            raise HarnessUnusable(f"{self.name} {self.version} is not installed; run: gyre harness install {self.name}")

    def launch(self, context: LaunchContext) -> LaunchPlan:
        program = self.environment_of(context.harness_root).package("@openai/codex") / "bin" / "codex.js"
        flags = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-"]
        return LaunchPlan(
            argv=(node(), str(program), *flags),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "CODEX_HOME": str(context.home / ".codex"),
                "POLICY_API_KEY": context.token,
            },
            files={".codex/config.toml": _config(context), _INSTRUCTION: context.instruction},
            stdin=_INSTRUCTION,
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        return HarnessOutcome(end=EndReason.EXITED)

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        return CallRole.MAIN


def _config(context: LaunchContext) -> str:
    settings = checked(context.choice, _SETTINGS)
    window = settings.get("context_tokens", context.context_tokens)
    compact = settings.get("compact_at_tokens", max(1, (window - context.output_tokens) * 9 // 10))
    quoted = json.dumps
    return f"""model = {quoted(context.model)}
model_provider = "policy"
model_context_window = {window}
model_auto_compact_token_limit = {compact}
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.policy]
name = "policy"
base_url = {quoted(context.endpoint + "/v1")}
env_key = "POLICY_API_KEY"
wire_api = "responses"
request_max_retries = 20
stream_max_retries = 20
stream_idle_timeout_ms = {_PATIENT_MS}
"""
