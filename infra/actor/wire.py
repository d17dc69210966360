"""The actor's HTTP surface, as both sides see it: routes, and how an error crosses.

An error is a JSON body ``{"error": class name, "message": text, "field": name or null}`` with a status that follows
from its branch of the exception tree; the client raises the same class again.
"""

from typing import Any

from pydantic import Field

from workflows.messages import errors
from workflows.messages import training as m
from workflows.messages.base import Message

KEY_VARIABLE = "GYRE_ACTOR_KEY"
"""Environment variable that carries the bearer key to the actor process."""

ROUTES: dict[str, tuple[type[m.ActorRequest], type[Message]]] = {
    "restore_base": (m.RestoreBase, m.RestoreReply),
    "restore_checkpoint": (m.RestoreCheckpoint, m.RestoreReply),
    "lay_down": (m.LayDown, m.ResourceReply),
    "expose_snapshot": (m.ExposeSnapshot, m.SnapshotReply),
    "release_snapshot": (m.ReleaseSnapshot, m.ResourceReply),
    "pull_snapshot": (m.PullSnapshot, m.WeightsReply),
    "export": (m.ExportWeights, m.ExportReply),
    "resume": (m.Resume, m.ResourceReply),
    "release": (m.Release, m.ResourceReply),
    "open_batch": (m.OpenBatch, m.BatchReply),
    "run_micro_step": (m.RunMicroStep, m.MicroStepReply),
    "seal": (m.BatchRequest, m.SealReply),
    "contribute": (m.Contribute, m.BatchReply),
    "combine": (m.Combine, m.CombineReply),
    "take_back": (m.BatchRequest, m.BatchReply),
    "commit": (m.Commit, m.BatchReply),
    "discard": (m.BatchRequest, m.BatchReply),
    "replay_logprobs": (m.ReplayLogprobs, m.ReplayReply),
}
"""``POST /<name>``: request and reply. Beside them ``GET /status`` answers an ActorStatus."""


class ErrorBody(Message):
    """What a failed call answers."""

    error: str
    message: str = Field(max_length=2000)
    field: str | None = None


def status_of(error: errors.GyreError) -> int:
    """HTTP status of an exception: 400 a wrong request, 503 try again, 409 never."""
    if isinstance(error, errors.InvalidInput):
        return 400
    return 503 if isinstance(error, errors.Transient) else 409


def body_of(error: errors.GyreError) -> ErrorBody:
    field = error.field if isinstance(error, errors.InvalidInput) else None
    text = str(error)
    if field and text.startswith(f"{field}: "):
        text = text[len(field) + 2 :]
    return ErrorBody(error=type(error).__name__, message=text[:2000], field=field)


def exception_of(status: int, body: Any) -> errors.GyreError:
    """The exception an answer stands for; ActorUnavailable for one the actor cannot have meant."""
    try:
        parsed = ErrorBody.model_validate(body)
    except ValueError:
        return errors.ActorUnavailable(f"the actor answered {status} without an error body")
    kind = getattr(errors, parsed.error, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.GyreError)):
        return errors.ActorUnavailable(f"the actor answered {status}: {parsed.error}: {parsed.message}")
    if issubclass(kind, errors.InvalidInput):
        # ContextOverflow is built from counts; an actor has no contexts, so the plain class carries its text.
        kind = errors.InvalidInput if kind is errors.ContextOverflow else kind
        return kind(parsed.message, field=parsed.field)
    return kind(parsed.message)
