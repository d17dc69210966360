"""What the control plane says to a cell's training actor, and what it answers. Small: tensors go by one-sided reads.

Every request carries the actor's boot epoch and a lease epoch: a wrong boot epoch, or a lease lower than the highest
seen, is refused as Fenced. Every call is idempotent: asked again it answers as before and changes nothing.
"""

from enum import StrEnum

from pydantic import Field, JsonValue

from workflows.messages.artifacts import ArtifactRef
from workflows.messages.base import Message
from workflows.messages.batch_ledger import BatchLedger
from workflows.messages.group import MicroStep
from workflows.messages.loss import LossSettings
from workflows.messages.transfer import BufferManifest

Checksum = str
"""The weights checksum: 64 hex digits (`infra.weights.checksum`)."""


class BatchPhase(StrEnum):
    """Where an actor is in a batch. CLOSED: it holds none. APPLIED: core only, updated but not yet committed."""

    CLOSED = "closed"
    OPEN = "open"
    SEALED = "sealed"
    APPLIED = "applied"


class ActorRequest(Message):
    """Fencing, on every request but `status`."""

    boot_epoch: int = Field(ge=0)
    lease_epoch: int = Field(0, ge=0)


class WeightsReply(Message):
    """The weights an actor now holds."""

    version: int
    checksum: Checksum


class RestoreBase(ActorRequest):
    """Load the base model with fresh optimizer state and call it `version`; the start of a run."""

    version: int = Field(0, ge=0)
    checksum: Checksum | None = Field(None, description="refuse any other")
    as_core: bool = Field(default=False, description="be the core from now on, if it is not")


class RestoreCheckpoint(ActorRequest):
    """Load a complete checkpoint: `version`, or the newest if None.

    The newest may be of an update that no batch has recorded; who knows the committed version and checksum names them.
    """

    version: int | None = Field(None, ge=0)
    checksum: Checksum | None = Field(None, description="refuse any other")
    as_core: bool = Field(
        default=False, description="be the core from now on: optimizer and generators too, though the weights be held"
    )


class CheckpointRef(Message):
    """One complete checkpoint of the core. `name` is its folder below the checkpoint root."""

    name: str
    version: int
    checksum: Checksum


class RestoreReply(Message):
    """`counters` is what the caller gave when the checkpoint was written, `ledger` the batch whose update it holds.

    A base model has neither.
    """

    version: int
    checksum: Checksum
    checkpoint: CheckpointRef | None = None
    counters: dict[str, JsonValue] = {}
    ledger: BatchLedger | None = None


class Resume(ActorRequest):
    """Allocate what training needs: the gradient buffer, registered for one-sided reads."""


class Release(ActorRequest):
    """Free what only training needs. Weights stay; so does the core's optimizer. Refused while a batch is held."""


class LayDown(ActorRequest):
    """Be the core no more: the optimizer goes, and so does a batch that nobody recorded. A satellite stays one."""


class ResourceReply(Message):
    """What is held now, in bytes, measured after the call."""

    gradient_bytes: int
    snapshot_bytes: int
    pins: int
    resident_bytes: int = Field(description="resident set of the process")


class ExposeSnapshot(ActorRequest):
    """Make the weights readable. Refused as VersionMismatch if the actor holds another version."""

    version: int = Field(ge=0)


class SnapshotReply(Message):
    """Leave to read one version's weights, for `pin_seconds` or until the pin is released."""

    version: int
    checksum: Checksum
    manifest: BufferManifest
    pin: str
    pin_seconds: float


class ReleaseSnapshot(ActorRequest):
    """Acknowledge that a snapshot has been read. A late or repeated one changes nothing."""

    pin: str


class PullSnapshot(ActorRequest):
    """Read the core's weights, verify the checksum, and only then use them."""

    version: int = Field(ge=0)
    checksum: Checksum
    manifest: BufferManifest
    timeout_seconds: float = Field(default=30, gt=0)


class OpenBatch(ActorRequest):
    """Accumulate for `batch` from now on, with exactly these weights. On a sealed batch: accumulate further."""

    batch: str
    version: int = Field(ge=0)
    checksum: Checksum


class BatchRequest(ActorRequest):
    """A step in the life of one batch: seal, take back its update, discard."""

    batch: str


class Accumulated(Message):
    """One micro-step whose gradient is in the sum, with the attempt that counted."""

    index: int = Field(ge=0)
    attempt: int = Field(ge=1)


class BatchReply(Message):
    """Where the actor now stands with the batch."""

    batch: str
    phase: BatchPhase
    version: int
    accumulated: tuple[Accumulated, ...] = ()


class TokenMetrics(Message):
    """Sums over target tokens, so that any number of them merge by adding and nothing depends on how a batch was cut.

    Log-probs are natural, per token. `gaps` is a histogram of |log-prob - behaviour log-prob| in the bins of
    `infra.logprob_gaps`, `versions` counts the targets that each weight version sampled. What is not asked for is not
    measured: `reference_tokens` and `entropy_tokens` say over how many targets those sums are.
    """

    tokens: int = 0
    loss_sum: float = 0.0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    clipped_low: int = 0
    clipped_high: int = 0
    truncated: int = 0
    kl_sum: float = 0.0
    reference_tokens: int = 0
    reference_kl_sum: float = 0.0
    entropy_tokens: int = 0
    entropy_sum: float = 0.0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    gaps: dict[int, int] = {}
    versions: dict[int, int] = {}
    computed_tokens: int = Field(default=0, description="places that went through the model, targets and context")
    path_tokens: int = Field(default=0, description="what they would be if every path were computed on its own")

    def merged(self, other: "TokenMetrics") -> "TokenMetrics":
        """Metrics of both sets of tokens together."""
        values: dict[str, object] = {}
        for name in TokenMetrics.model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, dict):
                values[name] = _added(mine, theirs)  # pyright: ignore[reportUnknownArgumentType]
            else:
                values[name] = max(mine, theirs) if name.endswith("_max") else mine + theirs
        return TokenMetrics.model_validate(values)


def _added(mine: dict[int, int], theirs: dict[int, int]) -> dict[int, int]:
    return {key: mine.get(key, 0) + theirs.get(key, 0) for key in sorted(mine.keys() | theirs.keys())}


class RunMicroStep(ActorRequest):
    """Add one micro-step's gradient to the sum of the open batch.

    The same index is never added twice: a later attempt of a micro-step that is in the sum already takes it over, an
    earlier one is Fenced.
    """

    micro_step: MicroStep
    attempt: int = Field(ge=1)
    loss: LossSettings = LossSettings()


class MicroStepReply(Message):
    """The claim, as the batch records it. `repeated`: it was in the sum already and was not computed again. `order`: so
    many micro-steps were in the cell's sum before it; lanes (replicas of the model) are summed apart and then added."""

    batch: str
    index: int
    attempt: int
    cell: int
    boot_epoch: int
    version: int
    checksum: Checksum = Field(default="", description="of the weights the gradient was computed with")
    repeated: bool
    lane: int = Field(default=0, ge=0)
    order: int = Field(default=0, ge=0)
    seconds: float
    metrics: TokenMetrics


class SealReply(Message):
    """The set really accumulated, and where its gradient can be read. Nothing accumulated: no manifest.

    `meeting`: where a prefix group can meet; of a core that is told to combine that way.
    """

    batch: str
    cell: int
    boot_epoch: int
    version: int
    accumulated: tuple[Accumulated, ...]
    metrics: TokenMetrics
    manifest: BufferManifest | None
    meeting: str = ""


class Participant(Message):
    """One satellite's sealed gradient, as the batch accepted it."""

    cell: int = Field(ge=0)
    boot_epoch: int = Field(ge=0)
    accumulated: tuple[Accumulated, ...]
    manifest: BufferManifest


class CombineGroup(Message):
    """A communication group over a prefix of the training cells: `members` are (cell, boot epoch), the core first.

    `meeting` is the core's, ``host:port/generation``; `timeout_seconds` bounds every wait in the group.
    """

    meeting: str = Field(pattern=r"^[^\s:/]+:\d+/\d+$")
    members: tuple[tuple[int, int], ...]
    timeout_seconds: float = Field(default=20, gt=0)

    @property
    def cells(self) -> tuple[int, ...]:
        return tuple(cell for cell, _ in self.members)

    @property
    def name(self) -> str:
        """The same for everybody who means the same group, another one for any other boot or generation."""
        return f"{self.meeting.rsplit('/', 1)[1]}/" + ",".join(f"{cell}.{boot}" for cell, boot in self.members)


class Contribute(ActorRequest):
    """A satellite's part in combining by a prefix group: hand the sealed sum of `batch` to the core."""

    batch: str
    group: CombineGroup


class Combine(ActorRequest):
    """Core only: sum the sealed gradients, divide once by `valid_executions`, clip, update once, checkpoint.

    `own` is the core's accumulated set as the batch accepted it; any other set is refused as Fenced. The result counts
    when the caller has recorded it and says so with `commit`.
    """

    batch: str
    groups: tuple[str, ...] = Field((), description="of the batch, in order of admission; bound into the checkpoint")
    own: tuple[Accumulated, ...]
    participants: tuple[Participant, ...]
    valid_executions: int = Field(ge=0, description="V: valid executions of groups with signal")
    learning_rate: float = Field(gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0, description="of matrices; norms do not decay")
    max_grad_norm: float = Field(gt=0)
    counters: dict[str, JsonValue] = Field({}, description="stored in the checkpoint, handed back by restore")
    timeout_seconds: float = Field(60, gt=0, description="for reading one participant's gradient")
    group: CombineGroup | None = Field(default=None, description="by a prefix group; None, or if it breaks: by reads")


class CombineReply(Message):
    """`stepped` is False for a batch without any target: no optimizer step, same version, no checkpoint."""

    batch: str
    stepped: bool
    version: int
    checksum: Checksum
    micro_steps: int
    grad_norm: float | None
    gradient_checksum: str = Field(default="", description="sha256 of the combined fp32 gradient as it was applied")
    checkpoint: CheckpointRef | None
    seconds: float


class Commit(ActorRequest):
    """The batch has recorded its update: gradients may go, the core's checkpoint must stay.

    `version` is the one after the update; None means whatever was applied here.
    """

    batch: str
    version: int | None = Field(None, ge=0)


class ExportWeights(ActorRequest):
    """Write a Hugging Face model folder for the local engine to load; renamed into place when complete."""

    folder: str = Field(description="absolute path, on memory-backed storage")
    version: int = Field(ge=0)
    checksum: Checksum


class ExportReply(Message):
    folder: str
    version: int
    checksum: Checksum
    bytes: int


class ReplayLogprobs(ActorRequest):
    """Forward only: how far are the recorded behaviour log-probs from this actor's, at the version it holds."""

    payload: ArtifactRef


class ReplayReply(Message):
    """Over the targets that were sampled at `version`; other tokens are not compared. Natural log-probs."""

    version: int
    tokens: int
    mean_gap: float
    p999_gap: float
    max_gap: float
    gaps: dict[int, int]


class ActorStatus(Message):
    """A look at the actor that never waits for its computation."""

    cell: int
    boot_epoch: int
    lease_epoch: int
    pid: int
    version: int | None
    checksum: Checksum | None
    batch: str | None
    phase: BatchPhase
    accumulated: int
    busy: bool
    optimizer_steps: int | None = Field(description="None on a satellite, which has no optimizer")
    resources: ResourceReply

    @property
    def is_core(self) -> bool:
        return self.optimizer_steps is not None
