"""qwen-code 0.24.4, unmodified: OpenAI chat, streamed."""

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

_SETTINGS = {"context_tokens": int}
_INSTRUCTION = "instruction.md"
_PATIENT_MS = 86_400_000


class QwenCode:
    """Settings: `context_tokens`."""

    name = "qwen-code"
    version = "0.24.4"
    dialect = "chat"

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
        written = {
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True},
            "security": {"auth": {"selectedType": "openai"}},
            "model": {
                "generationConfig": {
                    "timeout": _PATIENT_MS,
                    "maxRetries": 20,
                    "contextWindowSize": settings.get("context_tokens", context.context_tokens),
                }
            },
        }
        program = self.environment_of(context.harness_root).package("@qwen-code/qwen-code") / "cli.js"
        flags = ["--auth-type", "openai", "-m", context.model, "--approval-mode", "yolo", "-o", "stream-json"]
        return LaunchPlan(
            argv=(node(), str(program), *flags),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "OPENAI_BASE_URL": f"{context.endpoint}/v1",
                "OPENAI_API_KEY": context.token,
                "OPENAI_MODEL": context.model,
                "QWEN_CODE_NO_RELAUNCH": "true",
                "DO_NOT_TRACK": "1",
            },
            files={".qwen/settings.json": json.dumps(written), _INSTRUCTION: context.instruction},
            stdin=_INSTRUCTION,
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        return HarnessOutcome(end=EndReason.EXITED)

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        return CallRole.MAIN
