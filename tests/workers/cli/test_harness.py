"""`gyre harness`, as typed. A whole try of a real harness is in tests/integration."""

import pytest
from rich.console import Console

from infra.records.calls import RecordedCall
from workers.cli import app, harness


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
