"""What the scripted policy says in a rehearsal, for each harness: tool calls by the names its own tools have.

`repair` is one agent that writes a file, looks at it and says so. `errand` has the file written by a sub-agent.
`compact` lets the conversation outgrow what the harness allows it, so that it asks for a summary. Harnesses that have
no such thing are not given that part.
"""

import json
from collections.abc import Callable
from typing import Any

from workers.rehearsal.model import CONTEXT_TOKENS
from workflows.messages.base import Message

INSTRUCTION = "Write the word hello into out.txt in this repository, then stop."
ERRAND = "ERRAND: write the file, then report."
_WRITE, _LOOK, _DONE = "echo hello > out.txt", "cat out.txt", "The file out.txt says hello now, and that is all."
_SUMMARY = "SO FAR: out.txt has been written, nothing is left to do."
_PATIENCE_MS = 30_000
"""How long codex waits for a command before it gives the policy what there is; the most that it takes."""
_WAIT_MS = 200_000
"""How long codex waits for a sub-agent, also on a busy machine."""
_WORDS = "I shall go about this one step at a time, and this is the step that comes next: "


class Part(Message):
    """A script's rules, the settings that bring the scene about, what really fits the policy, and the calls to expect:
    role by role, in order of arrival; a harness with two agents may interleave them."""

    rules: tuple[dict[str, Any], ...]
    settings: dict[str, str | int | float | bool] = {}
    context_tokens: int = CONTEXT_TOKENS
    roles: tuple[str, ...]

    @property
    def script(self) -> str:
        return json.dumps({"rules": self.rules})


def call(tool: str, **arguments: Any) -> str:
    """A tool call as the rehearsal's policy writes it, behind a few words."""
    return f"{_WORDS}\n<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


_SHELLS: dict[str, Callable[[str], str]] = {
    "pi": lambda command: call("bash", command=command),
    "codex": lambda command: call("exec_command", cmd=command, yield_time_ms=_PATIENCE_MS),
    "claude-code": lambda command: call("Bash", command=command, description="a step of the task"),
    "qwen-code": lambda command: call("run_shell_command", command=command, is_background=False),
    "mini-swe-agent": lambda command: f"$ {command}",
}


def _repair(shell: Callable[[str], str], last: str) -> Part:
    return Part(rules=({"replies": [shell(_WRITE), shell(_LOOK), last]},), roles=("main",) * 3)


def _errand(shell: Callable[[str], str], main: tuple[dict[str, Any], ...], roles: tuple[str, ...]) -> Part:
    errand = {"match": ERRAND, "replies": [shell(_WRITE), _DONE]}
    return Part(rules=(errand, *main), roles=roles)


def _compact(first: str, roles: tuple[str, ...], **more: Any) -> Part:
    """The first answer, or what comes of it, is already more than `more` allows. What asks neither for the task nor
    with a summary in hand is the request for that summary."""
    rules = (
        {"prompt": _SUMMARY, "replies": [_DONE]},
        {"match": INSTRUCTION, "replies": [first]},
        {"replies": [f"<analysis>Little has been done.</analysis>\n<summary>{_SUMMARY}</summary>"]},
    )
    return Part(rules=rules, roles=roles, **more)


def _parts() -> dict[str, dict[str, Part]]:
    last = dict.fromkeys(_SHELLS, _DONE) | {
        "mini-swe-agent": "$ echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    }
    parts = {name: {"repair": _repair(shell, last[name])} for name, shell in _SHELLS.items()}
    sub = call(
        "Agent", description="an errand", prompt=ERRAND, subagent_type="general-purpose", run_in_background=False
    )
    parts["claude-code"]["errand"] = _errand(
        _SHELLS["claude-code"], ({"replies": [sub, _DONE]},), ("main", "sub-agent", "sub-agent", "main")
    )
    wait = call("wait_agent", targets=["{{agent}}"], timeout_ms=_WAIT_MS)
    main = (
        {"last": '"agent_id": ?"(?P<agent>[^"]+)"', "replies": [wait]},
        {"replies": [call("spawn_agent", message=ERRAND), _DONE, _DONE]},
    )
    parts["codex"]["errand"] = _errand(_SHELLS["codex"], main, ("main", "main", "sub-agent", "sub-agent", "main"))
    # claude-code never summarises before its second answer.
    summarised = ("main", "main", "main-summary", "main")
    write = {name: shell(_WRITE) for name, shell in _SHELLS.items()}
    at = {"claude-code": {"compact_at_percent": 5}, "codex": {"compact_at_tokens": 2000}}
    parts["claude-code"]["compact"] = _compact(write["claude-code"], summarised, settings=at["claude-code"])
    parts["codex"]["compact"] = _compact(write["codex"], summarised[1:], settings=at["codex"])
    # This one is not told how small the context is: the refusal of a call that no longer fits must tell it.
    flood = _SHELLS["qwen-code"](f"{_WRITE}; seq 1 2500")
    parts["qwen-code"]["compact"] = _compact(flood, summarised[1:], context_tokens=40_000)
    return parts


PARTS = _parts()
"""Harness -> name of the part -> the part."""


def parts_of(harness: str) -> dict[str, Part]:
    """The parts there are for a harness; a command line of the user's own is asked to do nothing in particular."""
    return PARTS.get(harness, {"repair": Part(rules=({"replies": [_DONE]},), roles=())})
