"""Case 45: what is a reward and what is a failure of the grader."""

import os

import pytest

from activities.rewards import parse_named, parse_number, read_reward
from workflows.messages.errors import EvaluatorFailure


@pytest.mark.parametrize(
    ("text", "reward"), [("0", 0.0), ("1\n", 1.0), ("0.3", 0.3), (" 1.0\r\n", 1.0), ("5e-1", 0.5), (".25", 0.25)]
)
def test_a_plain_number_is_a_reward(tmp_path, text, reward):
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier/reward.txt").write_text(text)
    assert read_reward(tmp_path) == reward


@pytest.mark.parametrize(
    "text",
    [
        "nan",
        "1.5",
        "",
        "\n",
        "true",
        "1\n0",
        "1 0",
        "inf",
        "-1",
        "-0.01",
        "0x1",
        "1_0",
        "١",
        "1,0",
        "1.0.0",
        "None",
        "1\0",
    ],
)
def test_anything_else_is_a_failure(tmp_path, text):
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier/reward.txt").write_text(text)
    with pytest.raises(EvaluatorFailure):
        read_reward(tmp_path)


def test_no_file_bytes_that_are_no_text_and_a_link_are_failures(tmp_path):
    with pytest.raises(EvaluatorFailure, match="neither"):
        read_reward(tmp_path)
    (tmp_path / "verifier").mkdir()
    file = tmp_path / "verifier/reward.txt"
    file.write_bytes(b"\xff\xfe1")
    with pytest.raises(EvaluatorFailure, match="UTF-8"):
        read_reward(tmp_path)
    file.write_text("1" * 70_000)
    with pytest.raises(EvaluatorFailure, match="larger"):
        read_reward(tmp_path)
    file.unlink()
    (tmp_path / "elsewhere").write_text("1")
    os.symlink(tmp_path / "elsewhere", file)
    with pytest.raises(EvaluatorFailure, match="plain file"):
        read_reward(tmp_path)


def test_a_pipe_instead_of_a_reward_holds_nobody_up(tmp_path):
    (tmp_path / "verifier").mkdir()
    os.mkfifo(tmp_path / "verifier/reward.txt")
    with pytest.raises(EvaluatorFailure, match="plain file"):
        read_reward(tmp_path)


def test_named_rewards():
    assert parse_named('{"reward": 0.5, "style": 1}') == 0.5
    assert parse_named('{"a": 1, "b": 0, "c": 0.5}') == 0.5
    wrongs = ["", "[]", "{}", "1", '{"reward": true}', '{"reward": NaN}', '{"reward": 1.5}', '{"a": 1, "b": "x"}']
    wrongs += [f'{{"reward": 1{"0" * 400}}}', f'{{"reward": 1{"0" * 5000}}}', '{"reward": 1e999}', "[" * 60_000]
    for wrong in wrongs:
        with pytest.raises(EvaluatorFailure):
            parse_named(wrong)


def test_text_file_wins(tmp_path):
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier/reward.txt").write_text("0")
    (tmp_path / "verifier/reward.json").write_text('{"reward": 1}')
    assert read_reward(tmp_path) == 0.0


def test_sign_and_range():
    assert parse_number("+1") == 1.0
    assert parse_number("-0.5") == -0.5  # the range is checked where it is read
