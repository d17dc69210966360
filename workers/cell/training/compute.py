"""The one thread in which an actor computes.

Requests run in order of arrival. Micro-steps flow: one is fed to the pipeline and answered when its gradient is in the
sum, while others are fed behind it. Everything else runs alone, with nothing in flight. When no request waits, what is
in flight is finished, so a pause in the data leaves all stages at the same point.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from workflows.messages.training import MicroStepReply, RunMicroStep

log = logging.getLogger(__name__)

Answer = Callable[[MicroStepReply | BaseException], None]


class Flow(Protocol):
    """What the thread drives. All of it is called from that thread alone."""

    @property
    def in_flight(self) -> int:
        """Micro-steps fed and not yet answered."""
        ...

    def feed(self, request: RunMicroStep, generation: int, abandoned: Callable[[], bool], answer: Answer) -> None:
        """Take one more; `answer` is called once, now or in a later `feed` or `advance`."""
        ...

    def advance(self) -> None:
        """Finish at least the oldest one in flight."""
        ...


class OneByOne:
    """A Flow whose micro-steps are computed whole, each as it comes: mix it into an actor with `run_micro_step`."""

    in_flight = 0

    def feed(self, request: RunMicroStep, generation: int, abandoned: Callable[[], bool], answer: Answer) -> None:
        answer(self.run_micro_step(request, generation, abandoned))  # pyright: ignore[reportAttributeAccessIssue]

    def advance(self) -> None:
        """Nothing is ever in flight."""


@dataclass(frozen=True)
class _Job:
    future: Future[Any]
    call: Callable[[], Any] | None = None
    feed: Callable[[Answer], None] | None = None


class ComputeThread:
    """Callers get futures; cancelling one that waits takes it out, one that runs goes on."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def alone(self, call: Callable[[], Any]) -> Future[Any]:
        """Run `call` with nothing in flight."""
        job = _Job(Future(), call=call)
        self._jobs.put(job)
        return job.future

    def flowing(self, feed: Callable[[Answer], None]) -> "Future[MicroStepReply]":
        """Have `feed` hand a micro-step to the flow; the future is its answer."""
        job = _Job(Future(), feed=feed)
        self._jobs.put(job)
        return job.future

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(block=not self._flow.in_flight)
            except Empty:
                self._advance()
                continue
            if job.call is not None:
                while self._flow.in_flight and self._advance():
                    pass
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                if job.call is not None:
                    job.future.set_result(job.call())
                elif job.feed is not None:
                    job.feed(_answering(job.future))
            except BaseException as error:
                _answering(job.future)(error)

    def _advance(self) -> bool:
        """False if the flow broke; whoever waits in it has been told by the flow itself."""
        try:
            self._flow.advance()
            return True
        except Exception:
            log.exception("what was in flight broke off")
            return False


def _answering(future: "Future[Any]") -> Answer:
    def answer(result: MicroStepReply | BaseException) -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    return answer
