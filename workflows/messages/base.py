"""What every message that crosses a process has in common.

Messages are immutable and closed: an unknown field is an error that names the field, so a misspelt key in a burst
file or a message from another code version never passes silently.
"""

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Base of every model that crosses Temporal or a component boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
