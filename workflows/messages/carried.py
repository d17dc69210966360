"""State that a workflow starts from and carries over when it continues as new, and its format.

Runs outlive deploys: the code that reads such a state need not be the code that wrote it. `format` numbers the layout.

older     upgraded, one pure function for each format, before anything else looks at it
newer     refused with StateUnreadable, which names what was found and what was expected
unknown   a field this code does not know, or a value it does not accept: refused likewise, by its name

StateUnreadable must never be among the exceptions that fail a workflow. It fails the workflow *task*: Temporal shows
it and tries again until a worker that can read the state is there. Failing the workflow would lose the state for good.
A malformed start waits likewise; only our own code starts these workflows.
"""

from collections.abc import Callable
from typing import Any, ClassVar, cast

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from workflows.messages.base import Message
from workflows.messages.errors import StateUnreadable

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""From the JSON object of one format to that of the next, `format` aside. Pure: replay calls it again."""

FIRST = 1
"""What a state without a `format` was written in."""

_WAITS = "Nothing is lost: it waits for a worker with the code that wrote it, or newer"


class Carried(Message):
    """Base of the states of Scheduler, Cell and TrainingBatch.

    A field that is added with a default needs nothing; older code refuses the state, as it must. A field that is
    renamed, removed or means something else needs the next `format` and an upgrade: redeclare `format` with the new
    default and append to `upgrades`. What lies in a field belongs to the layout too.
    """

    upgrades: ClassVar[tuple[Upgrade, ...]] = ()
    """`upgrades[n - 1]` leads from format n to n + 1."""

    format: int = Field(default=FIRST, description="number of this layout")

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        super().__pydantic_init_subclass__(**more)
        if cls.newest() != FIRST + len(cls.upgrades):
            raise TypeError(f"{cls.__name__}: format {cls.newest()} needs {cls.newest() - FIRST} upgrades")

    @classmethod
    def newest(cls) -> int:
        """The format this code writes."""
        return int(cls.model_fields["format"].default)

    @model_validator(mode="wrap")
    @classmethod
    def _of_any_format(
        cls, data: Any, handler: ModelWrapValidatorHandler["Carried"], info: ValidationInfo
    ) -> "Carried":
        """States that come as JSON, which is how Temporal keeps them; made in code they are of the newest format."""
        if info.mode != "json" or not isinstance(data, dict):
            return handler(data)
        found = cast("dict[str, Any]", data)
        try:
            return handler(upgraded(cls.__name__, found, cls.upgrades))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join((cls.__name__, *map(str, first["loc"])))
            number = found.get("format", FIRST)
            raise StateUnreadable(f"{field}: {first['msg']}, in a state of format {number}. {_WAITS}") from error


def upgraded(name: str, found: dict[str, Any], upgrades: tuple[Upgrade, ...]) -> dict[str, Any]:
    """The JSON object of a state `name` in the newest format. Raises StateUnreadable where no way leads there."""
    number, newest = found.get("format", FIRST), FIRST + len(upgrades)
    if not isinstance(number, int) or isinstance(number, bool) or not FIRST <= number <= newest:
        known = str(FIRST) if newest == FIRST else f"{FIRST} to {newest}"
        raise StateUnreadable(f"{name}.format: {number!r}, but this code knows format {known}. {_WAITS}")
    for since, upgrade in enumerate(upgrades[number - FIRST :], number):
        try:
            found = upgrade(dict(found))
        except (LookupError, TypeError, ValueError) as error:
            raise StateUnreadable(f"{name}: no upgrade from format {since}: {error!r}. {_WAITS}") from error
    return {**found, "format": newest}
