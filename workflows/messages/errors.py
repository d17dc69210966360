"""Every exception of OpenGyre, in one tree.

    GyreError                       something this project understands went wrong
    +-- InvalidInput                a person's input is wrong; `field` names what, the text says what was expected
    |   +-- InvalidSpec             a burst, campaign or fleet file
    |   +-- InvalidTask             a task folder that breaks the Harbor layout, or needs a container runtime
    |   `-- InvalidRequest          a model request that the proxy must refuse in the caller's dialect
    |       `-- ContextOverflow     prompt (plus budget) does not fit the model's context
    +-- Transient                   worth retrying: the other side may be starting, busy or restarting
    |   +-- EngineUnavailable       a rollout engine did not answer, or died
    |   +-- ActorUnavailable        a training actor did not answer, or died
    |   +-- TransferFailed          a one-sided read failed or did not verify; its buffer was discarded
    |   +-- EvaluatorFailure        the grader itself failed; never a reward
    |   +-- StillHeld               a resource that should be free is not yet free
    |   `-- StateUnreadable         other code wrote a workflow's state; a worker that can read it will come
    `-- Permanent                   retrying cannot help; the workflow parks or rolls back
        +-- Fenced                  an older lease, epoch or attempt tried to act
        +-- VersionMismatch         weights are not the version or checksum that was asked for
        +-- ChecksumMismatch        stored bytes differ from what their reference promises
        +-- HarnessUnusable         a harness cannot be started at all (missing, wrong version)
        +-- CheckpointUnusable      no complete checkpoint, or one that does not verify
        `-- AuditFailure            a recorded run breaks an invariant

`infra.temporal.failures` maps the tree once to Temporal's ApplicationError: Permanent and InvalidInput are
non-retryable, Transient is retried by the step's policy.
"""


class GyreError(Exception):
    """Root of the tree."""


class InvalidInput(GyreError):
    """A person's input is wrong. `field` is the dotted name of what is wrong, e.g. ``sampling.temperature``."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class InvalidSpec(InvalidInput):
    """A burst, campaign or fleet file is wrong."""


class InvalidTask(InvalidInput):
    """A task folder cannot be used."""


class InvalidRequest(InvalidInput):
    """A model request is refused, in the caller's dialect, with status 400."""


class ContextOverflow(InvalidRequest):
    """Prompt, or prompt plus output budget, exceeds the context; counts are in tokens."""

    def __init__(self, prompt_tokens: int, budget: int, limit: int) -> None:
        super().__init__(f"{prompt_tokens} prompt tokens + {budget} output tokens exceed the context of {limit}")
        self.prompt_tokens, self.budget, self.limit = prompt_tokens, budget, limit


class Transient(GyreError):
    """Worth retrying."""


class EngineUnavailable(Transient):
    """A rollout engine did not answer, or died."""


class ActorUnavailable(Transient):
    """A training actor did not answer, or died."""


class TransferFailed(Transient):
    """A one-sided read failed or did not verify."""


class EvaluatorFailure(Transient):
    """The grader failed; this is never a reward."""


class StillHeld(Transient):
    """A resource that should be free is not yet free."""


class StateUnreadable(Transient):
    """This code cannot read the state of a workflow, which other code carried over. Nothing is wrong with the state:
    it waits for a worker with the right code."""


class Permanent(GyreError):
    """Retrying cannot help."""


class Fenced(Permanent):
    """An older lease, boot epoch or attempt tried to act."""


class VersionMismatch(Permanent):
    """Weights are not of the version or checksum asked for."""


class ChecksumMismatch(Permanent):
    """Stored bytes differ from what their reference promises."""


class HarnessUnusable(Permanent):
    """A harness cannot be started at all."""


class CheckpointUnusable(Permanent):
    """No complete checkpoint, or one that does not verify."""


class AuditFailure(Permanent):
    """A recorded run breaks an invariant."""
