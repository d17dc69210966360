"""`gyre harness`, as typed. A whole try of a real harness is in tests/integration."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from infra.records.calls import RecordedCall
from workers.cli import app, harness
from workflows.messages.execution import EndReason, HarnessRun


def test_every_harness_is_listed_with_its_pin(capsys):
    with pytest.raises(SystemExit) as ended:
        app.main(["harness", "list"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for words in (
        "mini-swe-agent",
        "2.4.6",
        "pi",
        "codex",
        "0.171.0",
        "responses",
        "claude-code",
        "messages",
        "qwen-code",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["install", "nobody"], "there are ['claude-code'"),
        (["try", "nobody"], "harness.name"),
        (["try", "pi", "--part", "errand"], "it has ['repair']"),
        (["try", "command"], "harness.settings.command"),
    ],
)
def test_wrong_input_is_named(arguments, named, capsys):
    with pytest.raises(SystemExit) as ended:
        app.main(["harness", *arguments])
    assert ended.value.code == app.USAGE_ERROR
    assert named in capsys.readouterr().err


def test_a_folder_that_is_not_empty_is_not_used(tmp_path, capsys):
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit) as ended:
        app.main(["harness", "try", "pi", "--keep", str(tmp_path)])
    assert ended.value.code == app.USAGE_ERROR
    assert (tmp_path / "mine").exists()


class _Call:
    """As much of a recorded call as the tree shows."""

    def __init__(self, sequence, role, parent=None, fork_reason=None):
        self.call, self.sequence, self.role, self.state, self.finish = (
            f"c{sequence}",
            sequence,
            role,
            "finished",
            "stop",
        )
        self.parent_call, self.fork_reason = parent, fork_reason
        self.prompt_tokens, self.shared_tokens, self.output_array = 10, 5, [1, 2]
        self.fields = {"dialect": "chat"}


def test_a_call_hangs_below_the_one_it_continues_and_a_new_history_from_the_root():
    calls: list[RecordedCall] = [
        _Call(0, "main"),  # type: ignore[list-item]
        _Call(1, "sub-agent", "c0", "tools"),  # type: ignore[list-item]
        _Call(2, "main", "c0"),  # type: ignore[list-item]
    ]
    tree = harness.tree_of(tuple(calls))
    assert [len(branch.children) for branch in tree.children] == [1, 0]
    with (console := Console(width=100)).capture() as shown:
        console.print(tree)
    assert "1 sub-agent chat, 10 tokens in (5 known), 2 out, stop (a new history: tools)" in shown.get()


@pytest.mark.slow
def test_a_command_that_crashes_fails_the_try_and_shows_its_last_words(capsys):
    with pytest.raises(SystemExit) as ended:
        app.main(["harness", "try", "command", "--command", "sh -c 'echo oh no >&2; exit 127'", "--seconds", "200"])
    said = capsys.readouterr().out
    assert ended.value.code == 1
    assert "it crashed with exit code 127 before its first model call" in said
    assert "oh no" in said.split("its last words on standard error:")[1]


@pytest.mark.parametrize(
    ("end", "called", "told"),
    [
        (EndReason.CRASHED, False, "it crashed with exit code 2 before its first model call"),
        (EndReason.CRASHED, True, "it crashed with exit code 2\n"),
        (EndReason.SUBMITTED, False, ""),
    ],
)
def test_last_words_are_shown_of_a_harness_that_failed(end, called, told):
    run = HarnessRun(end=end, exit_code=2, detail="exit code 2")
    spec = SimpleNamespace(harness=SimpleNamespace(name="command"))
    outcome = SimpleNamespace(
        spec=spec, run=run, written=None, calls=(_Call(0, "main"),) if called else (), stderr="sh: [x]"
    )
    with (console := Console(width=200)).capture() as shown:
        harness.show(outcome, console)  # type: ignore[arg-type]
    assert told in shown.get()
    assert ("sh: [x]" in shown.get()) == bool(told)
