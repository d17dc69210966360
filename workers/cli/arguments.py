"""What an option may be: the numbers and the places that several commands take, checked before anything is done."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from workflows.messages.errors import InvalidInput


def _number(fits: Callable[[float], bool], expected: str) -> Parameter:
    """A number, or each number of a list. cyclopts shows the ValueError beside the option's name."""

    def check(_type: Any, value: Any) -> None:
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None and not (math.isfinite(one) and fits(one)):
                raise ValueError(f"expected {expected}")

    return Parameter(validator=check)


AT_LEAST_1 = _number(lambda value: value >= 1, "at least 1")
AT_LEAST_0 = _number(lambda value: value >= 0, "at least 0")
ABOVE_0 = _number(lambda value: value > 0, "a number above 0")

Positive = Annotated[int, AT_LEAST_1]
Positives = Annotated[tuple[int, ...], AT_LEAST_1]
Count = Annotated[int, AT_LEAST_0]
Amount = Annotated[float, ABOVE_0]


def require_place(path: Path | None, field: str) -> None:
    """Raises InvalidInput, naming `field`, where no file can be: before minutes are spent on what goes there."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise InvalidInput(f"there is no folder {path.parent}", field=field)
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder, a file is expected", field=field)
