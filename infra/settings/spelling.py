"""Fields that a person may have meant."""

import difflib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails


def problem_text(model: type[BaseModel], problem: ErrorDetails) -> str:
    """What is wrong with a field: pydantic's own words, but for a field that does not exist, the one that is meant."""
    if problem["type"] != "extra_forbidden":
        return problem["msg"]
    near = nearest_field(model, problem["loc"])
    return f"unknown field; did you mean `{near}`?" if near else "unknown field"


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
