"""mini-swe-agent 2.4.6, unmodified, in an environment of its own.

Two clients, named in the demo's summary. `thin`: its Python interface with our model class (its own `model_class`
setting), standard library only. `stock`: its `mini` command with its own litellm client. Both read the same settings
file and send the same conversation.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness_adapters.choices import checked
from harness_adapters.environment import PythonEnvironment
from harness_adapters.generic import BASE_ENVIRONMENT
from harness_adapters.protocol import CallRole, HarnessOutcome, LaunchContext, LaunchPlan
from infra.plain_files import read_plain
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable, InvalidSpec
from workflows.messages.execution import EndReason

SETTINGS_FILE = Path(__file__).with_suffix(".yaml")
CLIENT_FOLDER = Path(__file__).with_name("mini_swe_agent_client")
_TRAJECTORY, _LARGEST_TRAJECTORY = "trajectory.json", 32 << 20
"""Bytes; parsed in the host, where JSON takes several times its size. A larger one cannot be read."""
_EXECUTION = "execution.yaml"
_ENDS = {
    "Submitted": EndReason.SUBMITTED,
    "LimitsExceeded": EndReason.CALL_LIMIT,
    "TimeExceeded": EndReason.WALL_LIMIT,
    # The policy's doing, not the harness': it wrote no command, or more than fits its context.
    "RepeatedFormatError": EndReason.EXITED,
    "ContextWindowExceededError": EndReason.EXITED,
}


class MiniSweAgent:
    """Settings: `config` (a settings file instead of ours), `step_limit`, `command_seconds`."""

    name = "mini-swe-agent"
    version = "2.4.6"
    dialect = "chat"
    settings = {"config": str, "step_limit": int, "command_seconds": int}

    def environment_of(self, harness_root: Path) -> PythonEnvironment:
        return PythonEnvironment(harness_root / self.name, "harness-mini-swe-agent.lock.txt")

    def installed(self, harness_root: Path) -> bool:
        return self.environment_of(harness_root).is_current()

    def install(self, harness_root: Path) -> None:
        self.environment_of(harness_root).install()

    def check(self, choice: HarnessChoice, harness_root: Path) -> None:
        _overrides(choice)
        config = _settings_file(choice)
        if not config.is_file():
            raise InvalidSpec(f"no such file: {config}", field="harness.settings.config")
        if not self.installed(harness_root):
            raise HarnessUnusable(f"{self.name} {self.version} is not installed; run: gyre harness install {self.name}")

    def launch(self, context: LaunchContext) -> LaunchPlan:
        thin = context.choice.client == "thin"
        settings: dict[str, dict[str, Any]] = {
            "run": {"task": context.instruction},
            "agent": {"output_path": str(context.home / _TRAJECTORY)},
            "model": {
                "model_name": f"openai/{context.model}",
                "model_class": "gyre_thin_model.ThinModel" if thin else "litellm_textbased",
            },
            "environment": {},
        }
        for (section, key), value in _overrides(context.choice).items():
            settings[section][key] = value
        specs = [str(_settings_file(context.choice)), str(context.home / _EXECUTION)]
        # -P: a file in the workspace called queue.py must never be imported instead of the library's.
        python = [str(self.environment_of(context.harness_root).python), "-P"]
        if thin:
            argv = [*python, str(CLIENT_FOLDER / "gyre_run_agent.py"), *specs]
        else:
            flags = ["-y", "--exit-immediately", "-l", "0", "-o", str(context.home / _TRAJECTORY)]
            argv = [*python, "-m", "minisweagent", "-c", specs[0], "-c", specs[1], *flags]
        return LaunchPlan(
            argv=tuple(argv),
            environment=_environment(context, thin),
            files={_EXECUTION: _as_yaml(settings)},
            cwd=context.workspace,
        )

    def outcome(self, context: LaunchContext, exit_code: int | None) -> HarnessOutcome:
        """Success is the trajectory's exit status; the exit code only tells a run that left none."""
        try:
            left = read_plain(context.home / _TRAJECTORY, _LARGEST_TRAJECTORY)
            info = json.loads(left.decode("utf-8", "replace"))["info"]
            status = str(info.get("exit_status") or "")
            calls = int(info["model_stats"]["api_calls"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"no trajectory that can be read ({type(error).__name__}); exit code {exit_code}"
            return HarnessOutcome(end=EndReason.CRASHED, detail=reason)
        if status in _ENDS:
            return HarnessOutcome(end=_ENDS[status], detail="" if status == "Submitted" else status, model_calls=calls)
        reason = f"exit status {status!r}, exit code {exit_code}" if status else f"cut off; exit code {exit_code}"
        return HarnessOutcome(end=EndReason.CRASHED, detail=reason[:2000], model_calls=calls)

    def role_of(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> CallRole:
        return CallRole.MAIN  # it has no sub-agents and never summarises


def _environment(context: LaunchContext, thin: bool) -> dict[str, str]:
    environment = {
        **BASE_ENVIRONMENT,
        "HOME": str(context.home),
        "OPENAI_BASE_URL": f"{context.endpoint}/v1",
        "OPENAI_API_KEY": context.token,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(context.home / "config"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "*",
    }
    if thin:
        environment["PYTHONPATH"] = str(CLIENT_FOLDER)
    return environment


def _settings_file(choice: HarnessChoice) -> Path:
    return Path(str(choice.settings.get("config", SETTINGS_FILE))).absolute()


def _overrides(choice: HarnessChoice) -> dict[tuple[str, str], int]:
    places = {"step_limit": ("agent", "step_limit"), "command_seconds": ("environment", "timeout")}
    result: dict[tuple[str, str], int] = {}
    for name, value in checked(choice, MiniSweAgent.settings).items():
        if name in places:
            result[places[name]] = value
    return result


def _as_yaml(settings: dict[str, Any]) -> str:
    """JSON that any YAML reader takes for the same: everything beyond ASCII escaped, astral characters as one."""
    text = json.dumps(settings, ensure_ascii=False, indent=1)
    return "".join(char if char == "\n" or " " <= char <= "~" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
