"""The four harnesses of node as data: plans, settings, ends and roles. Nothing is started here."""

import json
import os
import tomllib

import pytest

from harness_adapters import CallRole, LaunchContext, adapter_named
from harness_adapters.environment import REQUIREMENTS
from harness_adapters.registry import adapters
from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import HarnessUnusable, InvalidSpec
from workflows.messages.execution import EndReason

NODE = ("pi", "codex", "claude-code", "qwen-code")
KEYS = {
    "pi": "POLICY_API_KEY",
    "codex": "POLICY_API_KEY",
    "claude-code": "ANTHROPIC_API_KEY",
    "qwen-code": "OPENAI_API_KEY",
}


@pytest.fixture(params=NODE)
def adapter(request):
    return adapter_named(request.param)


@pytest.fixture
def context(tmp_path):
    (tmp_path / "home").mkdir()
    return LaunchContext(
        execution="r/execution/b/0000/00",
        instruction="- Fix it.\n",
        workspace=tmp_path / "workspace",
        home=tmp_path / "home",
        endpoint="http://127.0.0.1:9/x/abc",
        token="secret-token",
        context_tokens=32768,
        output_tokens=1024,
        harness_root=tmp_path / "harness",
    )


def with_settings(context, adapter, **settings):
    return context.model_copy(update={"choice": HarnessChoice(name=adapter.name, settings=settings)})


def test_a_plan_is_complete_and_carries_one_secret(context, adapter, monkeypatch):
    monkeypatch.setenv("GYRE_ADMIN_KEY", "ours")
    plan = adapter.launch(context)
    assert plan.cwd == context.workspace
    assert [key for key, value in plan.environment.items() if "secret-token" in value] == [KEYS[adapter.name]]
    assert "secret-token" not in json.dumps([plan.argv, plan.files])
    assert plan.environment["HOME"] == str(context.home)
    assert not [key for key in plan.environment if key.startswith("GYRE")]
    endpoint = json.dumps([plan.environment, plan.files])
    assert "http://127.0.0.1:9/x/abc" in endpoint
    assert ("http://127.0.0.1:9/x/abc/v1" in endpoint) == (adapter.dialect != "messages")


def test_an_instruction_is_standard_input_so_that_a_dash_at_its_start_is_no_option(context, adapter):
    plan = adapter.launch(context)
    assert plan.files[plan.stdin] == context.instruction
    assert not [part for part in plan.argv if "Fix it" in part]


def test_every_lock_pins_its_harness_with_integrity_and_names_no_registry(adapter):
    lock = json.loads((REQUIREMENTS / f"harness-{adapter.name}" / "package-lock.json").read_text())
    (package,) = lock["packages"][""]["dependencies"]
    assert lock["packages"][f"node_modules/{package}"]["version"] == adapter.version
    for name, entry in lock["packages"].items():
        assert "resolved" not in entry
        assert not name or entry["integrity"].startswith("sha512-"), name


def test_what_is_not_installed_says_how_to_install_it(adapter, tmp_path):
    with pytest.raises(HarnessUnusable, match=f"gyre harness install {adapter.name}"):
        adapter.check(HarnessChoice(name=adapter.name), tmp_path)


@pytest.mark.parametrize("value", [0, -1, True, "many", 1.5])
def test_a_wrong_setting_is_named(adapter, tmp_path, value):
    with pytest.raises(InvalidSpec) as refused:
        adapter.check(HarnessChoice(settings={"context_tokens": value}), tmp_path)
    assert refused.value.field == "harness.settings.context_tokens"


@pytest.mark.parametrize("name", sorted(adapters()))
def test_an_unknown_setting_is_named(name, tmp_path):
    with pytest.raises(InvalidSpec) as refused:
        adapter_named(name).check(HarnessChoice(settings={"temprature": 1}), tmp_path)
    assert refused.value.field == "harness.settings.temprature"


def test_harnesses_know_the_context_of_the_policy(context):
    pi = json.loads(adapter_named("pi").launch(context).files[".pi/agent/models.json"])
    (model,) = pi["providers"]["policy"]["models"]
    assert (model["contextWindow"], model["maxTokens"]) == (32768, 1024)
    codex = tomllib.loads(adapter_named("codex").launch(context).files[".codex/config.toml"])
    assert codex["model_context_window"] == 32768
    output, compact = codex["tool_output_token_limit"], codex["model_auto_compact_token_limit"]
    # One output more than it counted, a token a byte, still fits: a refused call would end its run.
    assert compact - output + 4 * output <= 32768 - 1024
    assert output > 1000
    claude = adapter_named("claude-code").launch(context).environment
    assert claude["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "32768"
    qwen = json.loads(adapter_named("qwen-code").launch(context).files[".qwen/settings.json"])
    assert qwen["model"]["generationConfig"]["contextWindowSize"] == 32768


def test_settings_reach_the_harness(context):
    codex = adapter_named("codex")
    chosen = with_settings(context, codex, context_tokens=9000, compact_at_tokens=500, tool_output_tokens=70)
    written = codex.launch(chosen).files
    config = tomllib.loads(written[".codex/config.toml"])
    assert (config["model_context_window"], config["model_auto_compact_token_limit"]) == (9000, 500)
    assert config["tool_output_token_limit"] == 70
    claude = adapter_named("claude-code")
    plan = claude.launch(with_settings(context, claude, max_turns=3, compact_at_percent=40))
    assert plan.argv[-2:] == ("--max-turns", "3")
    assert plan.environment["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"] == "40"


def test_qwen_code_starts_no_helper_beside_a_command(context):
    """The end of such a child makes node take a command that ends with it for one that said nothing."""
    written = json.loads(adapter_named("qwen-code").launch(context).files[".qwen/settings.json"])
    assert written["general"]["preventSystemSleep"] is False


def printed(context, *events):
    file = context.home / "stdout.log"
    file.write_text("noise\n" + "".join(f"{json.dumps(event)}\n" for event in events) + '{"type": "resu')
    return context.model_copy(update={"stdout": file})


SUCCESS, FAILURE = {"type": "result", "subtype": "success"}, {"type": "result", "subtype": "error_during_execution"}
FULL = "This model's maximum context length is 10 tokens. However, your messages resulted in 20 tokens."


@pytest.mark.parametrize(
    ("name", "events", "end"),
    [
        ("codex", [{"type": "turn.started"}, {"type": "turn.completed"}], EndReason.SUBMITTED),
        ("codex", [{"type": "turn.completed"}, {"type": "turn.started"}], EndReason.CRASHED),
        ("codex", [{"type": "turn.failed", "error": {"message": "full context window"}}], EndReason.EXITED),
        ("codex", [{"type": "turn.failed", "error": {"message": "stream lost"}}], EndReason.CRASHED),
        ("codex", [], EndReason.CRASHED),
        ("claude-code", [SUCCESS | {"is_error": False}], EndReason.SUBMITTED),
        ("claude-code", [SUCCESS | {"is_error": True, "terminal_reason": "prompt_too_long"}], EndReason.EXITED),
        ("claude-code", [SUCCESS | {"is_error": True, "terminal_reason": "api_error"}], EndReason.CRASHED),
        ("claude-code", [{"type": "result", "subtype": "error_max_turns"}], EndReason.CALL_LIMIT),
        ("claude-code", [{"type": "assistant"}], EndReason.CRASHED),
        ("qwen-code", [FAILURE, SUCCESS], EndReason.SUBMITTED),
        ("qwen-code", [FAILURE | {"is_error": True, "error": {"message": FULL}}], EndReason.EXITED),
        ("qwen-code", [FAILURE | {"is_error": True, "error": {"message": "401"}}], EndReason.CRASHED),
        ("qwen-code", [], EndReason.CRASHED),
    ],
)
def test_the_event_stream_decides_not_the_exit_code(context, name, events, end):
    for code in (0, 1, -9, None):
        assert adapter_named(name).outcome(printed(context, *events), code).end is end


@pytest.mark.parametrize("name", ["codex", "claude-code", "qwen-code"])
@pytest.mark.parametrize(
    "line", ['{"type": "\\ud800"}', '{"a":' * 100_000, '{"type": 1e999}', "{}", '{"error": "\\u0000"}']
)
def test_whatever_it_prints_before_its_end(context, name, line):
    """Field case 49: lone surrogates, endless nesting, numbers that are none."""
    end = {"type": "turn.failed", "error": {"message": "\ud800 \0"}}
    end |= {"is_error": True} if name == "codex" else {"type": "result", "subtype": "x", "is_error": True}
    file = context.home / "stdout.log"
    file.write_text(f"{line}\n{json.dumps(end)}\n")
    outcome = adapter_named(name).outcome(context.model_copy(update={"stdout": file}), 1)
    assert outcome.end is EndReason.CRASHED
    assert "\0" not in outcome.detail
    json.loads(outcome.model_dump_json())


def left_behind(path, what):
    path.parent.mkdir(parents=True, exist_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path.name)


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "loop"])
@pytest.mark.parametrize(
    ("name", "place"), [("mini-swe-agent", "trajectory.json"), ("pi", ".pi/agent/sessions/here/one.jsonl")]
)
def test_what_an_agent_left_in_its_home_holds_nobody_up(context, name, place, what):
    left_behind(context.home / place, what)
    assert adapter_named(name).outcome(context, 0).end is EndReason.CRASHED


def test_a_harness_that_printed_nothing_crashed(context, adapter):
    assert adapter.outcome(context, 0).end is EndReason.CRASHED
    missing = context.model_copy(update={"stdout": context.home / "nothing"})
    assert adapter.outcome(missing, 0).end is EndReason.CRASHED


@pytest.mark.parametrize(
    ("stops", "end", "calls"),
    [
        (["toolUse", "stop"], EndReason.SUBMITTED, 2),
        (["toolUse"], EndReason.CRASHED, 1),
        (["length"], EndReason.EXITED, 1),
        (["error"], EndReason.CRASHED, 1),
        (["aborted"], EndReason.CRASHED, 1),
    ],
)
def test_pi_is_judged_by_the_session_it_keeps(context, stops, end, calls):
    session = context.home / ".pi/agent/sessions/here/one.jsonl"
    session.parent.mkdir(parents=True)
    entries = [{"type": "session"}, {"type": "message", "message": {"role": "user"}}]
    entries += [{"type": "message", "message": {"role": "assistant", "stopReason": stop}} for stop in stops]
    session.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    outcome = adapter_named("pi").outcome(context, 0)
    assert (outcome.end, outcome.model_calls) == (end, calls)


TOOLS = [{"name": "Bash", "input_schema": {}}]
HISTORY = [{"role": "user", "content": "Fix it."}, {"role": "assistant", "content": "I did."}]
SUMMARISE = {"role": "user", "content": [{"type": "text", "text": "Write <analysis> and then <summary>."}]}


@pytest.mark.parametrize(
    ("headers", "body", "role"),
    [
        ({}, {"tools": TOOLS, "messages": HISTORY[:1]}, CallRole.MAIN),
        ({"x-claude-code-agent-id": "a1"}, {"tools": TOOLS, "messages": HISTORY}, CallRole.SUB_AGENT),
        ({}, {"tools": TOOLS, "messages": [*HISTORY, SUMMARISE]}, CallRole.MAIN_SUMMARY),
        (
            {"x-claude-code-agent-id": "a1"},
            {"tools": TOOLS, "messages": [*HISTORY, SUMMARISE]},
            CallRole.SUB_AGENT_SUMMARY,
        ),
        # A task that names the tags is no summary.
        ({}, {"tools": TOOLS, "messages": [SUMMARISE]}, CallRole.MAIN),
        ({}, {"tools": TOOLS, "messages": [SUMMARISE, HISTORY[1], {"role": "system", "content": "x"}]}, CallRole.MAIN),
        ({}, {"messages": HISTORY}, CallRole.SIDE),
        ({}, {"tools": TOOLS, "messages": "nonsense"}, CallRole.MAIN),
    ],
)
def test_roles_of_claude_code(headers, body, role):
    assert adapter_named("claude-code").role_of(headers, body) is role


@pytest.mark.parametrize(
    ("turn", "role"),
    [
        ({"request_kind": "turn", "thread_source": "user"}, CallRole.MAIN),
        ({"request_kind": "compaction", "thread_source": "user"}, CallRole.MAIN_SUMMARY),
        ({"request_kind": "turn", "subagent_kind": "thread_spawn"}, CallRole.SUB_AGENT),
        ({"request_kind": "compaction", "thread_source": "subagent"}, CallRole.SUB_AGENT_SUMMARY),
        ({"request_kind": "title"}, CallRole.SIDE),
        ({}, CallRole.SIDE),
    ],
)
def test_roles_of_codex(turn, role):
    assert adapter_named("codex").role_of({"x-codex-turn-metadata": json.dumps(turn)}, {}) is role


@pytest.mark.parametrize("metadata", [{}, {"x-codex-turn-metadata": "no json"}, {"x-codex-turn-metadata": "[]"}])
def test_codex_without_metadata_is_a_side_call(metadata):
    assert adapter_named("codex").role_of(metadata, {"tools": [1]}) is CallRole.SIDE


def functions(*names):
    return [{"type": "function", "function": {"name": name}} for name in names]


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ({"tools": functions("agent", "get_goal")}, CallRole.MAIN),
        ({"tools": functions("agent", "read_file")}, CallRole.SUB_AGENT),
        ({"messages": [{"role": "user", "content": "Give me a <state_snapshot>."}]}, CallRole.MAIN_SUMMARY),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a title"}]}]}, CallRole.SIDE),
        ({}, CallRole.SIDE),
    ],
)
def test_roles_of_qwen_code(body, role):
    assert adapter_named("qwen-code").role_of({}, body) is role


def test_roles_of_pi():
    assert adapter_named("pi").role_of({}, {"tools": functions("bash")}) is CallRole.MAIN
    assert adapter_named("pi").role_of({}, {"messages": []}) is CallRole.MAIN_SUMMARY
