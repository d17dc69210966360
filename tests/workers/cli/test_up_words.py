"""What `gyre up` says and refuses before a stack is there."""

import asyncio
from contextlib import suppress

import pytest
from rich.console import Console

import workers.cli.up as command
from infra.code import Code, what_changed
from infra.settings.fleet import Fleet
from workers.supervisor import StackEvent
from workers.supervisor.run_folder import open_manifest
from workflows.messages.errors import InvalidInput


def test_a_wrong_model_moves_no_earlier_run_out_of_the_way(tmp_path):
    file, run = tmp_path / "fleet.toml", tmp_path / "run"
    open_manifest(Fleet(run="r"), run)
    file.write_text('run = "r"\nmodel = "Qwen/Qwen3-0.6B"\n')
    for fresh in (True, False):
        with pytest.raises(InvalidInput, match=r"^model: .* has to be a local folder"):
            command.up(fleet=file, run_dir=run, fresh=fresh)
        assert (run / "run.json").exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.toml", "run"]


def test_other_code_is_told_in_one_line_of_whatever_length():
    line = what_changed(Code(version="a" * 40, workflows="b" * 12), Code(version="c" * 40, workflows="d" * 12)) or ""
    console = Console(width=60)
    with console.capture() as shown:
        command.say(console, StackEvent("code", "changed", line))
    assert shown.get().count("\n") == 1
    assert line in shown.get()


class _Starting:
    """A stack of which control is not ready at first, and no engine later."""

    def __init__(self):
        self.looks = 0

    def unready(self):
        self.looks += 1
        return ["control", "proxy"] if self.looks == 1 else []


async def test_what_is_waited_for_is_told(monkeypatch):
    monkeypatch.setattr(command, "_TELL_SECONDS", 0.01)
    console, stack = Console(width=200), _Starting()
    with console.capture() as shown:
        telling = asyncio.create_task(command._tell_what_is_waited_for(stack, console))
        while stack.looks < 3:
            await asyncio.sleep(0.01)
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
    lines = shown.get().splitlines()
    assert lines[0] == "still waiting for control (which starts the Scheduler when cell-0 has its weights), proxy"
    assert lines[1] == "still waiting for an engine that serves"
