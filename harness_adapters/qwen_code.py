"""qwen-code 0.24.4, unmodified: OpenAI chat, streamed.

No header tells its agents apart. Only the main agent has the tool that reads the goal of the session; a summary is
asked for without tools, by a last message that names the tag its answer must have; anything else without tools is a
side call. A sub-agent's summary reads like the main agent's; the proxy knows them apart by how their histories begin.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness_adapters.events import last_result, outcome_of, text_of
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.node_environment import node
from harness_adapters.node_harness import INSTRUCTION, PATIENT_MS, PATIENT_RETRIES, NodeHarness
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan

_MAIN_TOOL, _SUMMARY_TAG = "get_goal", "<state_snapshot>"


class QwenCode(NodeHarness):
    """Settings: `context_tokens`, what it takes the policy's context to be; `max_turns`."""

    name = "qwen-code"
    version = "0.24.4"
    dialect = "chat"
    settings = {"context_tokens": int, "max_turns": int}

    def launch(self, context: LaunchContext) -> LaunchPlan:
        chosen = self.chosen(context.choice)
        written = {
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {
                "enableAutoUpdate": False,
                "disableAutoUpdate": True,
                "disableUpdateNag": True,
                # It would start a helper beside every command. When that one ends, node reaps both, and a command that
                # has ended by then is taken to have said nothing: its output is read too late.
                "preventSystemSleep": False,
            },
            "security": {"auth": {"selectedType": "openai"}},
            "model": {
                "generationConfig": {
                    "timeout": PATIENT_MS,
                    "maxRetries": PATIENT_RETRIES,
                    "contextWindowSize": chosen.get("context_tokens", context.context_tokens),
                }
            },
        }
        program = self.environment_of(context.harness_root).package("@qwen-code/qwen-code") / "cli.js"
        flags = ["--auth-type", "openai", "-m", context.model, "--approval-mode", "yolo", "-o", "stream-json"]
        if "max_turns" in chosen:
            flags += ["--max-session-turns", str(chosen["max_turns"])]
        return LaunchPlan(
            argv=(node(), str(program), *flags),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "OPENAI_BASE_URL": f"{context.endpoint}/v1",
                "OPENAI_API_KEY": context.token,
                "OPENAI_MODEL": context.model,
                "QWEN_CODE_NO_RELAUNCH": "true",
                "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
                "QWEN_CODE_MAX_OUTPUT_TOKENS": str(context.output_tokens),
                "DO_NOT_TRACK": "1",
            },
            files={".qwen/settings.json": json.dumps(written), INSTRUCTION: context.instruction},
            stdin=INSTRUCTION,
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        """By the last result in its event stream."""
        result = last_result(context.stdout)
        said = str((result.get("error") or {}).get("message") or result.get("subtype") or "")
        return outcome_of(result, exit_code, said, is_full="context length" in said)

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        tools = body.get("tools")
        if tools:
            names = {(tool.get("function") or {}).get("name") for tool in tools if isinstance(tool, dict)}
            return CallRole.MAIN if _MAIN_TOOL in names else CallRole.SUB_AGENT
        messages = body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else {}
        asked = text_of(last.get("content")) if isinstance(last, dict) else ""
        return CallRole.MAIN_SUMMARY if _SUMMARY_TAG in asked else CallRole.SIDE
