"""Which micro-steps are in the gradient sum of the batch an actor holds: a state machine without tensors.

Invariants: an index enters the sum at most once; what is sealed does not change; only the holder of the newest attempt
of a micro-step may claim it; a batch that ended or was superseded never comes back.

    CLOSED -> OPEN -> SEALED -> APPLIED (core) -> CLOSED
               ^---------'  ^----'        open again: micro-steps of a lost cell come back into the stream; take back
"""

from collections import deque
from dataclasses import dataclass, replace

from workflows.messages.errors import Fenced, VersionMismatch
from workflows.messages.training import Accumulated, BatchPhase, TokenMetrics

_REMEMBERED_BATCHES = 256


@dataclass(frozen=True)
class Entry:
    """One micro-step in the sum. `payload` is the sha256 of what was computed; `lane` and `order` are its place in the
    sum: lanes are summed apart, each in order, and added at the end."""

    attempt: int
    payload: str
    metrics: TokenMetrics
    seconds: float
    lane: int = 0
    order: int = 0


class Accumulator:
    """The books of one actor. Callers serialise the calls that change it."""

    def __init__(self) -> None:
        self.phase = BatchPhase.CLOSED
        self.batch: str | None = None
        self.version = -1
        self.generation = 0
        """Counts fresh starts of the sum; work that was queued for an older one must not be added."""
        self._entries: dict[int, Entry] = {}
        self._ended: deque[str] = deque(maxlen=_REMEMBERED_BATCHES)

    def open(self, batch: str, version: int) -> bool:
        """Hold `batch`, at `version`. True: the sum must start from zero. False: it goes on as it is.

        Another batch that is still held is superseded: its caller is gone, since batches come one after the other.
        Raises Fenced for a batch that ended, or for another one while an update is not yet committed.
        """
        if batch in self._ended:
            raise Fenced(f"{batch} has ended here")
        if self.phase is BatchPhase.APPLIED:
            raise Fenced(f"{self.batch} is applied and not yet committed or discarded")
        if self.phase is not BatchPhase.CLOSED and batch == self.batch:
            if version != self.version:
                raise VersionMismatch(f"{batch} is held at version {self.version}, not {version}")
            self.phase = BatchPhase.OPEN
            return False
        if self.phase is not BatchPhase.CLOSED:
            if version < self.version:
                raise Fenced(f"{batch} at version {version} is older than {self.batch} at {self.version}")
            self.end()
        self._start(BatchPhase.OPEN, batch, version)
        return True

    def admit(self, batch: str, index: int, attempt: int, payload: str, generation: int) -> Entry | None:
        """Whether micro-step `index` may be computed now: None if so, its entry if it is in the sum already.

        A later attempt of one that is in the sum takes it over. Raises Fenced for another batch, an earlier attempt, a
        sum that was started afresh since the work was queued, or an index that comes back with another payload.
        """
        if batch != self.batch or self.phase is not BatchPhase.OPEN:
            raise Fenced(f"{batch} is not open here ({self.batch} is {self.phase})")
        if generation != self.generation:
            raise Fenced(f"micro-step {index} was queued for a gradient sum that has been discarded")
        entry = self._entries.get(index)
        if entry is None:
            return None
        if attempt < entry.attempt:
            raise Fenced(f"attempt {attempt} of micro-step {index}; attempt {entry.attempt} holds it")
        if payload != entry.payload:
            raise Fenced(f"micro-step {index} comes back with another payload")
        taken = replace(entry, attempt=attempt)
        self._entries[index] = taken
        return taken

    def add(self, index: int, entry: Entry) -> None:
        """Micro-step `index`, admitted before, is in the sum now."""
        self._entries[index] = entry

    def seal(self, batch: str) -> None:
        """Freeze the sum of `batch`. Sealing again changes nothing. Raises Fenced if it is not held."""
        self._require(batch, BatchPhase.OPEN, BatchPhase.SEALED)
        self.phase = BatchPhase.SEALED

    def mark_applied(self, batch: str) -> None:
        """The update of `batch` is in the weights and durable."""
        self._require(batch, BatchPhase.SEALED)
        self.phase = BatchPhase.APPLIED

    def mark_sealed_again(self, batch: str) -> None:
        """The update of `batch` has been undone; its sum is as it was."""
        self._require(batch, BatchPhase.SEALED, BatchPhase.APPLIED)
        self.phase = BatchPhase.SEALED

    def require_sealed(self, batch: str) -> None:
        """Raises Fenced unless `batch` is sealed here."""
        self._require(batch, BatchPhase.SEALED)

    def end(self) -> None:
        """The held batch is over: committed or superseded. It cannot be opened again."""
        if self.batch is not None:
            self._ended.append(self.batch)
        self._start(BatchPhase.CLOSED, None, -1)

    def drop(self) -> None:
        """Forget the held batch; it may be opened again with an empty sum."""
        self._start(BatchPhase.CLOSED, None, -1)

    def spoil(self) -> None:
        """The sum is garbage (a backward pass broke off): go on with the batch, with nothing in it."""
        self._start(BatchPhase.OPEN, self.batch, self.version)

    def has_ended(self, batch: str) -> bool:
        return batch in self._ended

    @property
    def count(self) -> int:
        """Micro-steps in the sum; safe to ask from another thread."""
        return len(self._entries)

    @property
    def accumulated(self) -> tuple[Accumulated, ...]:
        """What is really in the sum, by index."""
        return tuple(Accumulated(index=index, attempt=self._entries[index].attempt) for index in sorted(self._entries))

    @property
    def metrics(self) -> TokenMetrics:
        """Of all micro-steps in the sum; merged in order of their index."""
        total = TokenMetrics()
        for index in sorted(self._entries):
            total = total.merged(self._entries[index].metrics)
        return total

    def _require(self, batch: str, *phases: BatchPhase) -> None:
        if batch != self.batch or self.phase not in phases:
            raise Fenced(f"{batch} is not {' or '.join(phases)} here ({self.batch} is {self.phase})")

    def _start(self, phase: BatchPhase, batch: str | None, version: int) -> None:
        self.phase, self.batch, self.version = phase, batch, version
        self.generation += 1
        self._entries = {}
