"""Micro-steps on their way into the gradient sum: fetched, fed to the stream, entered in the books when they are in.

Invariants: a micro-step that is being computed is never fed again; what broke off half-way is never in the sum, so the
whole sum is started afresh. See `compute` for who calls this.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.objects import ObjectStore
from workers.cell.training.accumulator import Accumulator, Entry
from workers.cell.training.cell_actor import claim, fetch
from workers.cell.training.compute import Answer
from workers.cell.training.gradients import GradientBuffer
from workers.cell.training.settings import ActorSettings
from workers.cell.training.stream import MicroStepStream
from workers.cell.training.weights_state import WeightsState
from workflows.messages.errors import Fenced, GyreError, Permanent
from workflows.messages.training import MicroStepReply, RunMicroStep, TokenMetrics

log = logging.getLogger(__name__)


@dataclass
class _Flight:
    """A micro-step that is being computed, and who waits for it."""

    request: RunMicroStep
    answer: Answer
    started: float
    lane: int = 0


class MicroStepFlow:
    """A `compute.Flow`. `buffer` gives the gradient sum, or raises StillHeld while there is none."""

    def __init__(
        self,
        settings: ActorSettings,
        books: Accumulator,
        objects: ObjectStore,
        weights: WeightsState,
        stream: MicroStepStream,
        buffer: Callable[[], GradientBuffer],
    ) -> None:
        self._settings, self._books, self._objects = settings, books, objects
        self._weights, self._stream = weights, stream
        self._buffer = buffer
        self._flights: dict[int, _Flight] = {}

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def feed(self, request: RunMicroStep, generation: int, abandoned: Callable[[], bool], answer: Answer) -> None:
        """See `compute.Flow`. `abandoned` says, before the work starts, that nobody waits for it any more.

        Raises what the micro-step is refused for before anything of it is computed.
        """
        step, payload = request.micro_step, request.micro_step.payload
        if step.index in self._flights:
            self.settle()  # an earlier attempt is under way: then it is in the sum, and is not computed again
        known = self._books.admit(step.batch, step.index, request.attempt, payload.sha256, generation)
        if known is not None:
            answer(self._claim(request, known, repeated=True))
            return
        if abandoned():
            raise Fenced(f"attempt {request.attempt} of micro-step {step.index} was given up by its caller")
        self._weights.require(self._books.version)
        packed = fetch(self._objects, step)
        flight = self._flights[step.index] = _Flight(request, answer, time.monotonic())
        try:
            flight.lane = self._stream.feed(packed, request.loss, lambda result: self._landed(step.index, result))
        except BaseException:
            self._flights.pop(step.index, None)
            self._spoil_unless_intact()
            raise

    def advance(self) -> None:
        try:
            self._stream.advance()
        except BaseException:
            self._spoil_unless_intact()
            raise

    def settle(self) -> None:
        """Nothing in flight any more."""
        while self._flights:
            self.advance()

    def run(self, request: RunMicroStep, generation: int, abandoned: Callable[[], bool]) -> MicroStepReply:
        """One micro-step from beginning to end."""
        answers: list[MicroStepReply | BaseException] = []
        self.feed(request, generation, abandoned, answers.append)
        self.settle()
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    def _landed(self, index: int, result: TokenMetrics | GyreError) -> None:
        flight = self._flights[index]
        if isinstance(result, GyreError):
            del self._flights[index]
            flight.answer(result)
            return
        if not self._buffer().is_attached():
            raise Permanent("a gradient was added outside the buffer")
        request, seconds = flight.request, time.monotonic() - flight.started
        place = {"lane": flight.lane, "order": self._books.count}
        entry = Entry(request.attempt, request.micro_step.payload.sha256, result, seconds, **place)
        self._books.add(index, entry)
        del self._flights[index]
        flight.answer(self._claim(request, entry, repeated=False))

    def _spoil_unless_intact(self) -> None:
        buffer = self._buffer()
        if self._stream.is_intact and buffer.is_attached():
            return  # refused before any pass of it: the sum is as it was
        log.error("a micro-step broke off; the gradient sum of %s on this cell is discarded", self._books.batch)
        lost, self._flights = self._flights, {}
        self._stream.break_off()
        buffer.zero()
        buffer.attach()
        self._books.spoil()
        for index, flight in lost.items():
            flight.answer(Fenced(f"micro-step {index} was in flight when another one broke off"))

    def _claim(self, request: RunMicroStep, entry: Entry, *, repeated: bool) -> MicroStepReply:
        checksum = self._weights.checksum
        return claim(self._settings, self._books, checksum, request, entry, repeated=repeated)
