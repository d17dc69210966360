"""A harness' own settings in a burst file, checked by name and kind."""

from collections.abc import Mapping
from typing import Any

from workflows.messages.burst import HarnessChoice
from workflows.messages.errors import InvalidSpec


def checked(choice: HarnessChoice, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The settings that are given. `kinds`: int means a whole number above 0, bool and str themselves.

    Raises InvalidSpec naming the first that is unknown or of the wrong kind.
    """
    for name, value in choice.settings.items():
        field = f"harness.settings.{name}"
        if name not in kinds:
            there = f"; there are {sorted(kinds)}" if kinds else ""
            raise InvalidSpec(f"not a setting of this harness{there}", field=field)
        kind = kinds[name]
        if kind is int and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidSpec(f"expected a whole number above 0, got {value!r}", field=field)
        if kind is not int and not isinstance(value, kind):
            raise InvalidSpec(f"expected {'true or false' if kind is bool else 'a text'}, got {value!r}", field=field)
    return dict(choice.settings)
