"""References to data that never crosses Temporal: tokens, log-probs, workspaces, checkpoints."""

from pydantic import Field

from workflows.messages.base import Message


class ArtifactRef(Message):
    """Where a blob lies and what it must hash to. `uri` is relative to the run's object store."""

    uri: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)
