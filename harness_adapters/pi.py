"""pi 0.73.1, unmodified: OpenAI chat, streamed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness_adapters.choices import checked
from harness_adapters.events import events
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.node_environment import NodeEnvironment, node
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable
from workflows.messages.execution import EndReason

_PACKAGE = "@mariozechner/pi-coding-agent"
_INSTRUCTION = "instruction.md"


class Pi:
    """Settings: `context_tokens`, what it believes the policy's context to be (it summarises before it is full)."""

    name = "pi"
    version = "0.73.1"
    dialect = "chat"

    def environment_of(self, harness_root: Path) -> NodeEnvironment:
        return NodeEnvironment(harness_root / self.name, f"harness-{self.name}")

    def install(self, harness_root: Path) -> None:
        self.environment_of(harness_root).install()

    def check(self, choice: HarnessChoice, harness_root: Path) -> None:
        checked(choice, {"context_tokens": int})
        if not self.environment_of(harness_root).is_current():
            raise HarnessUnusable(f"{self.name} {self.version} is not installed; run: gyre harness install {self.name}")

    def launch(self, context: LaunchContext) -> LaunchPlan:
        settings = checked(context.choice, {"context_tokens": int})
        model = {
            "id": context.model,
            "name": context.model,
            "input": ["text"],
            "contextWindow": settings.get("context_tokens", context.context_tokens),
            "maxTokens": context.output_tokens,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
        provider = {
            "baseUrl": f"{context.endpoint}/v1",
            "api": "openai-completions",
            "apiKey": "POLICY_API_KEY",
            "models": [model],
        }
        program = self.environment_of(context.harness_root).package(_PACKAGE) / "dist" / "cli.js"
        flags = ["--mode", "json", "--provider", "policy", "--model", context.model, "-p"]
        return LaunchPlan(
            argv=(node(), str(program), *flags),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "POLICY_API_KEY": context.token,
                "PI_OFFLINE": "1",
                "PI_TELEMETRY": "0",
            },
            files={
                ".pi/agent/models.json": json.dumps({"providers": {"policy": provider}}),
                _INSTRUCTION: context.instruction,
            },
            stdin=_INSTRUCTION,
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        return HarnessOutcome(end=EndReason.EXITED)

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        return CallRole.MAIN
