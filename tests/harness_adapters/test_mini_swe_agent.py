"""The adapter as data: plans, settings, and how it reads an end. Nothing is started here."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml
from jinja2 import StrictUndefined, Template

from harness_adapters import CallRole, LaunchContext, adapter_named
from harness_adapters.mini_swe_agent import SETTINGS_FILE, MiniSweAgent
from infra.demo import dialogue
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable, InvalidSpec
from workflows.messages.execution import EndReason


@pytest.fixture
def context(tmp_path):
    for name in ("home", "workspace"):
        (tmp_path / name).mkdir()
    return LaunchContext(
        execution="r/execution/b/0000/00",
        instruction="Fix it.\n",
        workspace=tmp_path / "workspace",
        home=tmp_path / "home",
        endpoint="http://127.0.0.1:9/x/abc",
        token="secret-token",
        harness_root=tmp_path / "harness",
    )


def with_choice(context, **choice):
    return context.model_copy(update={"choice": HarnessChoice(**choice)})


@pytest.mark.parametrize("client", ["thin", "stock"])
def test_a_plan_is_complete_and_carries_one_secret(context, client, monkeypatch):
    monkeypatch.setenv("GYRE_ADMIN_KEY", "ours")
    plan = MiniSweAgent().launch(with_choice(context, client=client))
    assert plan.cwd == context.workspace
    assert plan.environment["OPENAI_BASE_URL"] == "http://127.0.0.1:9/x/abc/v1"
    assert [key for key, value in plan.environment.items() if value == "secret-token"] == ["OPENAI_API_KEY"]
    assert plan.environment["HOME"] == str(context.home)
    assert plan.environment["MSWEA_GLOBAL_CONFIG_DIR"].startswith(str(context.home))
    assert not [key for key in plan.environment if key.startswith("GYRE")]
    assert "secret-token" not in json.dumps([plan.argv, plan.files])
    assert "Fix it." not in " ".join(plan.argv)


@pytest.mark.parametrize("text", ['é 😀 \u2028\x85\x7f\ufeff \x00\t{{task}} \\ "q" \'\n\n', "x: [1]\n#\n", "\n"])
def test_an_instruction_survives_the_settings_file(context, text):
    plan = MiniSweAgent().launch(context.model_copy(update={"instruction": text}))
    assert yaml.safe_load(plan.files["execution.yaml"])["run"]["task"] == text


def test_settings_reach_the_harness(context):
    choice = {"step_limit": 7, "command_seconds": 9}
    written = yaml.safe_load(MiniSweAgent().launch(with_choice(context, settings=choice)).files["execution.yaml"])
    assert written["agent"]["step_limit"] == 7
    assert written["environment"]["timeout"] == 9


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"stepp_limit": 3}, "harness.settings.stepp_limit"),
        ({"step_limit": 0}, "harness.settings.step_limit"),
        ({"step_limit": True}, "harness.settings.step_limit"),
        ({"command_seconds": "long"}, "harness.settings.command_seconds"),
        ({"config": "/nowhere.yaml"}, "harness.settings.config"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, settings, field):
    with pytest.raises(InvalidSpec) as refused:
        MiniSweAgent().check(HarnessChoice(settings=settings), tmp_path)
    assert refused.value.field == field


def test_a_harness_that_is_not_installed(tmp_path):
    with pytest.raises(HarnessUnusable, match="gyre harness install mini-swe-agent"):
        MiniSweAgent().check(HarnessChoice(), tmp_path)


def test_an_environment_of_another_lock_is_not_current(tmp_path):
    environment = MiniSweAgent().environment_of(tmp_path)
    (environment.folder / "bin").mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    (environment.folder / "installed-from.sha256").write_text("another lock")
    assert not environment.is_current()


def trajectory(context, exit_status, calls=3):
    data = {"info": {"exit_status": exit_status, "model_stats": {"api_calls": calls}}, "messages": []}
    (context.home / "trajectory.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("Submitted", EndReason.SUBMITTED),
        ("LimitsExceeded", EndReason.CALL_LIMIT),
        ("TimeExceeded", EndReason.WALL_LIMIT),
        ("RepeatedFormatError", EndReason.EXITED),
        ("ContextWindowExceededError", EndReason.EXITED),
        ("ModelRefused", EndReason.CRASHED),
        ("", EndReason.CRASHED),
    ],
)
def test_the_trajectory_decides_not_the_exit_code(context, status, end):
    trajectory(context, status)
    for code in (0, 1, -9, None):
        outcome = MiniSweAgent().outcome(context, code)
        assert (outcome.end, outcome.model_calls) == (end, 3)


ENDLESS = '{"info": {"model_stats": {"api_calls": 1e999}}}'


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"info": {}}', '{"info": 3}', ENDLESS, '{"info":' * 100_000])
def test_a_run_that_left_no_trajectory_is_a_crash(context, text):
    if text is not None:
        (context.home / "trajectory.json").write_text(text)
    outcome = MiniSweAgent().outcome(context, -9)
    assert outcome.end is EndReason.CRASHED
    assert "-9" in outcome.detail


def test_a_trajectory_too_large_for_the_host_is_a_crash(context):
    trajectory(context, "Submitted")
    file = context.home / "trajectory.json"
    file.write_text(file.read_text() + " " * (32 << 20))  # valid JSON all the same
    outcome = MiniSweAgent().outcome(context, 0)
    assert (outcome.end, outcome.model_calls) == (EndReason.CRASHED, None)


def test_every_call_is_a_main_call():
    assert MiniSweAgent().role_of({}, {}) is CallRole.MAIN


def test_settings_file_and_demonstrations_have_one_format():
    settings = yaml.safe_load(SETTINGS_FILE.read_text())
    agent, model = settings["agent"], settings["model"]

    def render(template, **values):
        return Template(template, undefined=StrictUndefined).render(**values)

    opening = [
        {"role": "system", "content": render(agent["system_template"])},
        {"role": "user", "content": render(agent["instance_template"], task="Do {{it}}.\n\n")},
    ]
    assert opening == dialogue.opening("Do {{it}}.\n\n")
    for returncode, output in [(0, "a\n"), (1, ""), (-1, "x" * 1000 + "\n"), (0, "{{x}} é\n\n")]:
        seen = render(model["observation_template"], output={"returncode": returncode, "output": output})
        assert {"role": "user", "content": seen} == dialogue.observation(returncode, output)
    assert agent["step_limit"] == dialogue.STEP_LIMIT
    assert settings["environment"]["timeout"] == dialogue.COMMAND_SECONDS
    assert model["action_regex"] == dialogue.ACTION.pattern


def test_commands_see_the_environment_of_the_demonstrations(context):
    environment = MiniSweAgent().launch(context).environment
    assert environment.items() >= dialogue.COMMAND_ENVIRONMENT.items()


def test_an_unknown_harness_lists_the_known_ones():
    with pytest.raises(InvalidSpec, match="mini-swe-agent"):
        adapter_named("nobody")


def test_any_command_can_be_a_harness(context, tmp_path):
    adapter = adapter_named("command")
    script = tmp_path / "agent.sh"
    script.write_text('test -n "$OPENAI_API_KEY" && cp "$GYRE_INSTRUCTION_FILE" "$GYRE_WORKSPACE/seen"\n')
    ready = with_choice(context, name="command", settings={"command": f"sh '{script}'"})
    adapter.check(ready.choice, tmp_path)
    plan = adapter.launch(ready)
    for name, text in plan.files.items():
        (context.home / name).write_text(text)
    done = subprocess.run(plan.argv, env=plan.environment, cwd=plan.cwd, stdin=subprocess.DEVNULL)
    assert adapter.outcome(ready, done.returncode).end is EndReason.SUBMITTED
    assert (context.workspace / "seen").read_text() == "Fix it.\n"
    assert adapter.outcome(ready, 3).end is EndReason.CRASHED


@pytest.mark.parametrize("command", ["", "'open", 3])
def test_a_command_that_is_none(tmp_path, command):
    with pytest.raises(InvalidSpec, match="command"):
        adapter_named("command").check(HarnessChoice(settings={"command": command}), tmp_path)


def test_a_command_that_is_not_there(tmp_path):
    assert shutil.which("no-such-agent", path=os.defpath) is None
    with pytest.raises(HarnessUnusable):
        adapter_named("command").check(HarnessChoice(settings={"command": "no-such-agent --x"}), tmp_path)
