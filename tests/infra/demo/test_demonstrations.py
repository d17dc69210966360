"""Demonstrations are played for real, and half of them are bad examples."""

from infra.demo.demonstrations import demonstrate, demonstration
from infra.demo.dialogue import SUBMIT, command_of, is_submission, run_command
from infra.demo.rewards import solved
from infra.demo.tasks import repair_of


def test_a_right_one_and_a_tempting_one(tmp_path):
    repair = repair_of("demonstration", 0, 0)
    right = demonstrate(repair, tmp_path / "right", right=True)
    tempting = demonstrate(repair, tmp_path / "tempting", right=False)
    assert solved(repair, tmp_path / "right")
    assert not solved(repair, tmp_path / "tempting")
    assert len(right) == len(tempting) == 2 + 2 * (2 * repair.repairs + 1) + 1
    assert right[:4] == tempting[:4], "both begin by looking"


def test_every_answer_is_a_command_and_the_last_one_submits(tmp_path):
    talk = demonstration(3, seed=0, scratch=str(tmp_path))
    commands = [command_of(message["content"]) for message in talk if message["role"] == "assistant"]
    assert None not in commands
    assert commands[-1] == SUBMIT
    assert is_submission(*run_command(SUBMIT, tmp_path))
    assert talk == demonstration(3, seed=0, scratch=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_about_half_follow_the_right_way(tmp_path):
    shown = [demonstration(i, seed=0, scratch=str(tmp_path)) for i in range(40)]
    right = sum(talk_follows_right(talk, i) for i, talk in enumerate(shown))
    assert 10 <= right <= 30


def talk_follows_right(talk, index):
    repair = repair_of("demonstration", 0, index)
    return talk[4]["content"] == f"$ {repair.right[0]}"


def test_a_command_that_hangs_is_cut_with_its_children(tmp_path):
    returncode, output = run_command("echo before; sleep 60 & sleep 60", tmp_path, seconds=0.3)
    assert (returncode, output) == (-1, "before\n")
