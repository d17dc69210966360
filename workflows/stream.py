"""The stream's own ledger: which micro-steps exist, wait, run, count.

Pure bookkeeping, no Temporal. Invariant: every micro-step is in exactly one of `pending`, running or `accepted`, and
`accepted` names for each the one (attempt, cell, boot epoch) whose gradient the update will sum.
"""

from collections import deque
from collections.abc import Iterable

from workflows.messages.base import Message
from workflows.messages.batch import Accepted
from workflows.messages.group import MicroStep


class StreamState(Message):
    """What a stream carries over when its batch continues as new; nothing runs then."""

    micro_steps: tuple[MicroStep, ...] = ()
    pending: tuple[int, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    emissions: dict[int, int] = {}


class Stream:
    """Micro-steps of one batch."""

    def __init__(self, state: StreamState) -> None:
        self.micro_steps = {step.index: step for step in state.micro_steps}
        self.pending = deque(state.pending)
        self.accepted = {done.index: done for done in state.accepted}
        self.emissions = dict(state.emissions)
        self.running: set[int] = set()

    def add(self, steps: Iterable[MicroStep]) -> None:
        """Put freshly packed micro-steps at the end."""
        for step in steps:
            if step.index not in self.micro_steps:
                self.micro_steps[step.index] = step
                self.pending.append(step.index)

    def take(self) -> tuple[MicroStep, int]:
        """The next micro-step to emit, and the how-manieth emission of it this is (from 1)."""
        index = self.pending.popleft()
        self.running.add(index)
        self.emissions[index] = self.emissions.get(index, 0) + 1
        return self.micro_steps[index], self.emissions[index]

    def accept(self, done: Accepted) -> None:
        """A running micro-step is done and counts, until its cell is lost."""
        self.running.discard(done.index)
        self.accepted[done.index] = done

    def put_back(self, index: int) -> None:
        """A running micro-step did not get done, or its result does not count."""
        self.running.discard(index)
        self.pending.append(index)

    def take_back(self, cell: int) -> None:
        """Return everything that `cell` accumulated."""
        for index in sorted(done.index for done in self.accepted.values() if done.cell == cell):
            del self.accepted[index]
            self.pending.append(index)

    def settle(self, counted: tuple[Accepted, ...]) -> None:
        """The update is made of exactly these; nothing more will run."""
        self.accepted = {done.index: done for done in counted}
        self.pending.clear()

    def counted(self, cell: int) -> list[tuple[int, int]]:
        """(index, attempt) that must be exactly what `cell` accumulated, sorted."""
        return sorted((done.index, done.attempt) for done in self.accepted.values() if done.cell == cell)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs; everything there is counts."""
        return not self.pending and not self.running and len(self.accepted) == len(self.micro_steps)

    def in_order(self) -> tuple[Accepted, ...]:
        return tuple(self.accepted[index] for index in sorted(self.accepted))

    def carry(self) -> StreamState:
        return StreamState(
            micro_steps=tuple(self.micro_steps[index] for index in sorted(self.micro_steps)),
            pending=tuple(self.pending),
            accepted=self.in_order(),
            emissions=self.emissions,
        )
