"""claude-code 2.1.332, unmodified: Anthropic Messages, streamed.

A sub-agent's requests carry its id in a header. A summary is asked for with the history and tools of any other
request, by a last text block that names the two tags its answer must have. A request without tools is a side call.
"""

from collections.abc import Mapping
from typing import Any

from harness_adapters.events import last_result, outcome_of
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.node_harness import INSTRUCTION, PATIENT_MS, PATIENT_RETRIES, NodeHarness
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan

_SUMMARY_TAGS = ("<analysis>", "<summary>")
_OFF = (
    *("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY"),
    *("DISABLE_ERROR_REPORTING", "DISABLE_BUG_COMMAND", "CLAUDE_CODE_DISABLE_TERMINAL_TITLE", "DO_NOT_TRACK"),
)


class ClaudeCode(NodeHarness):
    """Settings: `max_turns`; `context_tokens`, what it takes the policy's context to be; `compact_at_percent`, how much
    of it is filled before it summarises."""

    name = "claude-code"
    version = "2.1.332"
    dialect = "messages"
    settings = {"max_turns": int, "context_tokens": int, "compact_at_percent": int}

    def launch(self, context: LaunchContext) -> LaunchPlan:
        chosen = self.chosen(context.choice)
        flags = ["-p", "--model", context.model, "--dangerously-skip-permissions"]
        flags += ["--output-format", "stream-json", "--verbose"]
        if "max_turns" in chosen:
            flags += ["--max-turns", str(chosen["max_turns"])]
        window = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(chosen.get("context_tokens", context.context_tokens))}
        if "compact_at_percent" in chosen:
            window["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"] = str(chosen["compact_at_percent"])
        return LaunchPlan(
            argv=(str(self.environment_of(context.harness_root).binary("claude")), *flags),
            environment={
                **BASE_ENVIRONMENT,
                **dict.fromkeys(_OFF, "1"),
                **window,
                "HOME": str(context.home),
                "CLAUDE_CONFIG_DIR": str(context.home / ".claude"),
                "ANTHROPIC_BASE_URL": context.endpoint,
                "ANTHROPIC_API_KEY": context.token,
                "ANTHROPIC_DEFAULT_HAIKU_MODEL": context.model,
                "ANTHROPIC_DEFAULT_SONNET_MODEL": context.model,
                "ANTHROPIC_DEFAULT_OPUS_MODEL": context.model,
                # Without this a line of its first system block differs in every call.
                "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                "IS_SANDBOX": "1",
                "API_TIMEOUT_MS": str(PATIENT_MS),
                "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(PATIENT_MS),
                "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS": str(PATIENT_MS),
                "CLAUDE_CODE_MAX_RETRIES": str(PATIENT_RETRIES),
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(context.output_tokens),
            },
            files={INSTRUCTION: context.instruction},
            stdin=INSTRUCTION,
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        """By the last result in its event stream."""
        result = last_result(context.stdout)
        said = f"{result.get('terminal_reason') or result.get('subtype')}: {result.get('result') or ''}"
        return outcome_of(result, exit_code, said, is_full=result.get("terminal_reason") == "prompt_too_long")

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        sub = bool(headers.get("x-claude-code-agent-id"))
        if not body.get("tools"):
            return CallRole.SIDE
        if _asks_for_a_summary(body):
            return CallRole.SUB_AGENT_SUMMARY if sub else CallRole.MAIN_SUMMARY
        return CallRole.SUB_AGENT if sub else CallRole.MAIN


def _asks_for_a_summary(body: Mapping[str, Any]) -> bool:
    """The task itself may hold the tags too: it is never the last block of a conversation that has begun."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_role(message) == "assistant" for message in messages):
        return False
    content = messages[-1].get("content") if _role(messages[-1]) == "user" else None
    last = content[-1] if isinstance(content, list) and content else content
    text = last.get("text") if isinstance(last, dict) and last.get("type") == "text" else last
    return isinstance(text, str) and all(tag in text for tag in _SUMMARY_TAGS)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
