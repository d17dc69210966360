"""What every message that crosses a process has in common.

Messages are immutable and closed: an unknown field is an error that names the field, so a misspelt key in a burst
file or a message from another code version never passes silently.
"""

from pydantic import BaseModel, ConfigDict, model_validator

LONGEST_SECONDS = 6 * 24 * 3600.0
"""Of any wait that a person may ask for: below what the steps of a workflow are given."""
LARGEST_NUMBER = 2**53
"""No database, kernel limit or float minds it."""


class Message(BaseModel):
    """Base of every model that crosses Temporal or a component boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Written(Message):
    """Part of a file that a person writes. Every number is finite, and small enough for whatever is done with it; a
    field's own bounds hold beside these."""

    model_config = ConfigDict(allow_inf_nan=False)

    @model_validator(mode="after")
    def _bounded(self) -> "Written":
        for name in type(self).model_fields:
            value, most = getattr(self, name), LONGEST_SECONDS if name.endswith("_seconds") else LARGEST_NUMBER
            if isinstance(value, int | float) and abs(value) > most:
                raise ValueError(f"{name}: at most {most:g}, got {str(value)[:40]}")
        return self
