"""What is wrong with a file that a person wrote, and which fields they may have meant."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_NAMES = re.compile(r"[a-z_][\w.]*(?:, [a-z_][\w.]*)*: ")
"""How the text of a check over several fields begins: with their names."""
_CHOICE = re.compile(r"\^\(([\w|-]+)\)\$")
"""A pattern that is a list of words."""


def problem_text(model: type[BaseModel], error: ValidationError, path: Path | None = None) -> str:
    """Every wrong field, a line each: its dotted name, what was expected, and what was given if that is short.

    Each line begins with the file, where there is one.
    """
    before = f"{path}: " if path else ""
    return "\n       ".join(before + _line(model, problem) for problem in error.errors())


def _line(model: type[BaseModel], problem: ErrorDetails) -> str:
    place, said = ".".join(map(str, problem["loc"])), _text(model, problem)
    names = _NAMES.match(said) if problem["type"] == "value_error" else None
    if place and names:
        said = ", ".join(f"{place}.{name}" for name in names[0][:-2].split(", ")) + said[names.end() - 2 :]
    elif place:
        said = f"{place}: {said}"
    given = problem["input"]
    return f"{said} (got {given!r:.80})" if isinstance(given, str | int | float | bool | None) else said


def _text(model: type[BaseModel], problem: ErrorDetails) -> str:
    """Pydantic's own words where they are plain; for a field that does not exist, the one that is meant."""
    if problem["type"] == "extra_forbidden":
        near = nearest_field(model, problem["loc"])
        return f"unknown field; did you mean `{near}`?" if near else "unknown field"
    if problem["type"] == "tuple_type":
        return "Input should be a list"
    if problem["type"] == "string_pattern_mismatch":
        choice = _CHOICE.fullmatch(problem.get("ctx", {})["pattern"])
        return f"Input should be one of {', '.join(choice[1].split('|'))}" if choice else problem["msg"]
    return problem["msg"].removeprefix("Value error, ")


def nearest_field(model: type[BaseModel], place: Sequence[str | int]) -> str:
    """The field of `model` most like the last part of `place`, searched in the part that `place` names; or ''."""
    if not place:
        return ""
    *above, wrong = place
    for part in above:
        inner = _model_in(model.model_fields[part].annotation) if part in model.model_fields else None
        if inner is not None:
            model = inner
        elif isinstance(part, str) and part in model.model_fields:
            return ""
    close = difflib.get_close_matches(str(wrong), list(model.model_fields), n=1)
    return close[0] if close else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field, of its alternatives, or of the entries of its list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model_in(one)) is not None), None)
