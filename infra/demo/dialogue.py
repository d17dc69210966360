"""The conversation that a policy of the demo knows: what mini-swe-agent sends with our settings file.

Invariant: message for message the same as `harness_adapters/mini_swe_agent.yaml` makes the real harness send (a test
holds the two together), so demonstrations and rollouts have one format.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

SYSTEM = "Answer with one shell command."
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
STEP_LIMIT = 24
OUTPUT_CHARACTERS = 400
"""Kept of a command's output."""
COMMAND_SECONDS = 10.0
COMMAND_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
"""What a command may rely on, with the harness and in demonstrations: `*` and `sort` order bytes."""
ACTION = re.compile(r"^\$ (.*)", re.DOTALL)


def opening(instruction: str) -> list[dict[str, str]]:
    """The messages of an execution's first call."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": instruction}]


def answer(command: str) -> dict[str, str]:
    """The assistant message that runs `command`."""
    return {"role": "assistant", "content": f"$ {command}"}


def command_of(content: str) -> str | None:
    """The command in an assistant's text, or None if it has none."""
    found = ACTION.search(content)
    return found.group(1).strip() if found else None


def observation(returncode: int, output: str) -> dict[str, str]:
    """The user message that reports a command."""
    return {"role": "user", "content": f"{returncode}\n{output[:OUTPUT_CHARACTERS]}"}


def is_submission(returncode: int, output: str) -> bool:
    """Whether the harness ends on this output."""
    first = output.lstrip().splitlines()[:1]
    return returncode == 0 and [line.strip() for line in first] == ["COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]


def run_command(command: str, workspace: Path, seconds: float = COMMAND_SECONDS) -> tuple[int, str]:
    """(return code, standard output and error together) of one command, as the harness would see them."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=workspace,
        env={**COMMAND_ENVIRONMENT, "HOME": str(workspace)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return -1, output
    return process.returncode, output
