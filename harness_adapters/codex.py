"""codex 0.171.0, unmodified: OpenAI Responses, streamed.

Every request says in its turn metadata what it is for. It summarises before its context is full, never because a call
was refused: that ends its turn, and `exec` has no other. So what may come between two looks at its count is kept small.
"""

import json
from collections.abc import Mapping
from typing import Any

from harness_adapters.events import events
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.node_environment import node
from harness_adapters.node_harness import INSTRUCTION, PATIENT_MS, PATIENT_RETRIES, NodeHarness
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan
from workflows.messages.execution import EndReason

_OUTPUT = 10_000
"""Its own default: tokens kept of a tool's output. Less for a small context."""


class Codex(NodeHarness):
    """Settings: `context_tokens`, the policy's context as it sees it; `compact_at_tokens`, when it summarises;
    `tool_output_tokens`, what it keeps of a tool's output, at its four bytes a token."""

    name = "codex"
    version = "0.171.0"
    dialect = "responses"
    settings = {"context_tokens": int, "compact_at_tokens": int, "tool_output_tokens": int}

    def launch(self, context: LaunchContext) -> LaunchPlan:
        program = self.environment_of(context.harness_root).package("@openai/codex") / "bin/codex.js"
        flags = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-"]
        return LaunchPlan(
            argv=(node(), str(program), *flags),
            environment={
                **BASE_ENVIRONMENT,
                "HOME": str(context.home),
                "CODEX_HOME": str(context.home / ".codex"),
                "POLICY_API_KEY": context.token,
                "DO_NOT_TRACK": "1",
            },
            files={".codex/config.toml": self._config(context), INSTRUCTION: context.instruction},
            stdin=INSTRUCTION,
            cwd=context.workspace,
        )

    def _config(self, context: LaunchContext) -> str:
        chosen = self.chosen(context.choice)
        window = chosen.get("context_tokens", context.context_tokens)
        room = max(1, window - context.output_tokens)
        output = chosen.get("tool_output_tokens", max(1, min(_OUTPUT, room // 16)))
        # It counts a byte of output as a quarter of a token. Ours may be whole ones: three quarters are not counted.
        compact = chosen.get("compact_at_tokens", max(1, room - 3 * output))
        return f"""model = {json.dumps(context.model)}
model_provider = "policy"
model_context_window = {window}
model_auto_compact_token_limit = {compact}
tool_output_token_limit = {output}
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.policy]
name = "policy"
base_url = {json.dumps(context.endpoint + "/v1")}
env_key = "POLICY_API_KEY"
wire_api = "responses"
request_max_retries = {PATIENT_RETRIES}
stream_max_retries = {PATIENT_RETRIES}
stream_idle_timeout_ms = {PATIENT_MS}
"""

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        """By the last turn's end in its event stream."""
        end: dict[str, Any] = {}
        for event in events(context.stdout):
            if event.get("type") in ("turn.started", "turn.completed", "turn.failed"):
                end = event
        if end.get("type") == "turn.completed":
            return HarnessOutcome(end=EndReason.SUBMITTED)
        if end.get("type") == "turn.failed":
            said = str((end.get("error") or {}).get("message") or "")
            kind = EndReason.EXITED if "context window" in said else EndReason.CRASHED
            return HarnessOutcome(end=kind, detail=said[:2000])
        return HarnessOutcome(end=EndReason.CRASHED, detail=f"its turn has no end; exit code {exit_code}")

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        turn = _turn(headers)
        sub = turn.get("thread_source") == "subagent" or "subagent_kind" in turn
        if turn.get("request_kind") == "compaction":
            return CallRole.SUB_AGENT_SUMMARY if sub else CallRole.MAIN_SUMMARY
        if turn.get("request_kind") != "turn":
            return CallRole.SIDE
        return CallRole.SUB_AGENT if sub else CallRole.MAIN


def _turn(headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        turn = json.loads(headers.get("x-codex-turn-metadata", ""))
    except ValueError:
        return {}
    return turn if isinstance(turn, dict) else {}
