"""What a grader's verdict is, and what is none.

A reward is one finite number in [0, 1]: alone in ``verifier/reward.txt`` (an end of line may follow), or in
``verifier/reward.json``, an object of named numbers whose ``reward`` counts, or their mean if there is no such key.
``reward.txt`` wins when both are there. Anything else is a failure of the grader, never a 0.
"""

import json
import math
import re
from pathlib import Path

from infra.plain_files import read_plain
from workflows.messages.errors import EvaluatorFailure

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_LARGEST_FILE = 1 << 16


def read_reward(logs: Path) -> float:
    """The reward under `logs`. Raises EvaluatorFailure, saying what is wrong, when there is no valid one."""
    text = _read(logs / "verifier" / "reward.txt")
    if text is not None:
        return _in_range(parse_number(text), "reward.txt")
    text = _read(logs / "verifier" / "reward.json")
    if text is not None:
        return _in_range(parse_named(text), "reward.json")
    raise EvaluatorFailure("the tests wrote neither reward.txt nor reward.json")


def parse_number(text: str) -> float:
    """One plain decimal number, blanks around it allowed, nothing else."""
    line = text.strip(" \t\r\n")
    if not _NUMBER.fullmatch(line):
        raise EvaluatorFailure(f"reward.txt holds no single number: {line[:100]!r}")
    return float(line)


def parse_named(text: str) -> float:
    """The number under ``reward`` of a JSON object, else the mean of its values; all of them must be numbers."""
    try:
        named = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EvaluatorFailure(f"reward.json is not JSON: {error}") from None
    if not isinstance(named, dict) or not named:
        raise EvaluatorFailure("reward.json must hold an object with at least one named reward")
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise EvaluatorFailure(f"reward.json: {name[:100]!r} is not a number")
        _in_range(value, f"reward.json: {name[:100]!r}")
    return float(named["reward"]) if "reward" in named else math.fsum(named.values()) / len(named)


def _in_range(value: float, where: str) -> float:
    """`value` may be a whole number too large for a float."""
    if not 0.0 <= value <= 1.0:  # NaN fails both comparisons
        raise EvaluatorFailure(f"{where}: a reward must lie in [0, 1], got {str(value)[:100]}")
    return float(value)


def _read(path: Path) -> str | None:
    try:
        return read_plain(path, _LARGEST_FILE).decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise EvaluatorFailure(f"{path.name} is not UTF-8") from None
    except OSError as error:
        raise EvaluatorFailure(f"{path.name} cannot be read, a plain file is expected: {error}") from None
