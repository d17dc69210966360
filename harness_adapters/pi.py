"""pi 0.73.1, unmodified: OpenAI chat, streamed.

It has no sub-agents. A request without tools is the summary it writes when its context is nearly full.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness_adapters.events import events
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.node_environment import node
from harness_adapters.node_harness import INSTRUCTION, PATIENT_RETRIES, NodeHarness
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan
from workflows.messages.execution import EndReason

_RESERVED, _KEPT = 16_384, 20_000
"""Its own defaults: tokens left free before it summarises, recent ones it keeps. Less for a small context."""


class Pi(NodeHarness):
    """Settings: `context_tokens`, what it takes the policy's context to be."""

    name = "pi"
    version = "0.73.1"
    dialect = "chat"
    settings = {"context_tokens": int}

    def launch(self, context: LaunchContext) -> LaunchPlan:
        window = self.chosen(context.choice).get("context_tokens", context.context_tokens)
        model = {
            "id": context.model,
            "name": context.model,
            "input": ["text"],
            "contextWindow": window,
            "maxTokens": context.output_tokens,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
        provider = {
            "baseUrl": f"{context.endpoint}/v1",
            "api": "openai-completions",
            "apiKey": "POLICY_API_KEY",
            "models": [model],
        }
        patience = {
            "retry": {"enabled": True, "maxRetries": PATIENT_RETRIES},
            "compaction": {
                "enabled": True,
                "reserveTokens": min(_RESERVED, window // 4),
                "keepRecentTokens": min(_KEPT, window // 4),
            },
        }
        program = self.environment_of(context.harness_root).package("@mariozechner/pi-coding-agent") / "dist/cli.js"
        flags = ["--mode", "json", "--provider", "policy", "--model", context.model, "-p"]
        return LaunchPlan(
            argv=(node(), str(program), *flags),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "POLICY_API_KEY": context.token,
                "PI_OFFLINE": "1",
                "PI_TELEMETRY": "0",
                "DO_NOT_TRACK": "1",
            },
            files={
                ".pi/agent/models.json": json.dumps({"providers": {"policy": provider}}),
                ".pi/agent/settings.json": json.dumps(patience),
                INSTRUCTION: context.instruction,
            },
            stdin=INSTRUCTION,
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        """By the session it keeps: it ends with 0 on failure too, and its event stream repeats itself for ever."""
        last: dict[str, Any] = {}
        calls = 0
        for session in sorted((context.home / ".pi/agent/sessions").glob("*/*.jsonl")):
            for entry in events(session):
                message = entry.get("message")
                if entry.get("type") == "message" and isinstance(message, dict) and message.get("role") == "assistant":
                    last, calls = message, calls + 1
        reason, said = last.get("stopReason"), str(last.get("errorMessage") or "")
        if reason == "stop":
            return HarnessOutcome(end=EndReason.SUBMITTED, model_calls=calls)
        if reason == "length":
            return HarnessOutcome(end=EndReason.EXITED, detail="an answer was cut by its budget", model_calls=calls)
        if reason == "error" and "context length" in said:
            return HarnessOutcome(end=EndReason.EXITED, detail=said[:2000], model_calls=calls)
        detail = said or f"it stopped at {reason!r}; exit code {exit_code}"
        return HarnessOutcome(end=EndReason.CRASHED, detail=detail[:2000], model_calls=calls)

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        return CallRole.MAIN if body.get("tools") else CallRole.MAIN_SUMMARY
