"""Whether the stages of a cell live and move, which are two questions.

Life: each side of a connection sends a beat from a thread of its own, however long its computing thread is busy; one
that is silent, or does not read, for QUIET_LOOKS is gone. Progress: a beat says whether the stage computes and how far
it has come. A stage that computes may take its time; a cell in which the first stage waits while nobody computes and
nothing moves stands still, and has STALLED_LOOKS to prove otherwise. An accelerator computes as long as it has work
left; one whose work waits for another's looks the same, so a deadlock of devices takes BUSY_SECONDS to be seen.

Time is counted in looks, one every BEAT_SECONDS of the one that looks: where the whole machine stands still, nobody is
accused. Nothing heavy is imported here.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
QUIET_LOOKS = 12
STALLED_LOOKS = 12
BUSY_SECONDS = 1800.0
"""How long one pass, and the wait of a neighbour for it, may take."""


class Stillness:
    """For how many looks in a row a value has been as it was."""

    def __init__(self) -> None:
        self._value: object = None
        self._count = 0

    def looks(self, value: object) -> int:
        """Have a look; None is no value to stay as it was."""
        self._count = self._count + 1 if value is not None and value == self._value else 0
        self._value = value
        return self._count


class Progress:
    """What a stage's computing thread is at, for other threads to see. `moved` counts whatever came to an end.

    `is_device_busy`: whether an accelerator has work left that the thread gave it; the thread does not wait for that.
    """

    def __init__(self) -> None:
        self.is_computing = self.is_waiting = False
        self.moved = 0
        self.is_device_busy: Callable[[], bool] = lambda: False

    @property
    def is_at_work(self) -> bool:
        """The thread or the accelerator."""
        return self.is_computing or self.is_device_busy()

    @contextmanager
    def computing(self) -> Iterator[None]:
        with self._being(computing=True):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For another stage."""
        with self._being(computing=False):
            yield

    @contextmanager
    def _being(self, *, computing: bool) -> Iterator[None]:
        before = self.is_computing, self.is_waiting
        self.is_computing, self.is_waiting = computing, not computing
        try:
            yield
        finally:
            self.moved += 1
            self.is_computing, self.is_waiting = before


class StallRule:
    """Whether the cell stands still, decided at each look; no clock."""

    def __init__(self, stalled_looks: int, busy_looks: int) -> None:
        self._stalled_looks, self._busy_looks = stalled_looks, busy_looks
        self._still = Stillness()

    def is_stalled(self, *, first_waits: bool, any_computes: bool, moved: int) -> bool:
        """`moved`: of all stages together. Where the first stage waits for nobody, nothing is owed."""
        still = self._still.looks(moved if first_waits else None)
        return still >= (self._busy_looks if any_computes else self._stalled_looks)


class Beating(Protocol):
    """A stage as its last beat tells of it."""

    @property
    def is_computing(self) -> bool: ...

    @property
    def moved(self) -> int: ...


class StallWatch:
    """Looks at a cell's stages for as long as its process lives; `stalled` is called once, in a thread of its own.

    `others` gives the last beat of every other stage, None where there is none yet.
    """

    def __init__(
        self,
        first: Progress,
        others: Callable[[], Sequence[Beating | None]],
        stalled: Callable[[], None],
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._first, self._others, self._stalled, self._beat_seconds = first, others, stalled, beat_seconds
        self._rule = StallRule(STALLED_LOOKS, max(STALLED_LOOKS, round(BUSY_SECONDS / BEAT_SECONDS)))
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="stall watch", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def look(self) -> bool:
        """Whether the cell stands still; `stalled` is called then."""
        beats = self._others()
        is_stalled = self._rule.is_stalled(
            first_waits=self._first.is_waiting,
            any_computes=self._first.is_at_work or any(beat is None or beat.is_computing for beat in beats),
            moved=self._first.moved + sum(beat.moved for beat in beats if beat is not None),
        )
        if is_stalled:
            log.critical("the first stage waits, and nothing moves in any other: %s", beats)
            self._stalled()
        return is_stalled

    def _run(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            if self.look():
                return
