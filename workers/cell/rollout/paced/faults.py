"""Faults on request: what a test or a drill makes an engine do wrong.

die            kill this process after `after_tokens` tokens of a matching request
hang           say no more after `after_tokens`;  stall: accept the request and answer nothing at all
close          end the HTTP stream after `after_tokens` without a finish;  close_done: with a literal [DONE]
torn           end it in the middle of an event
no_done        end it after the finish, without [DONE]
garbage        answer 200 with something that is no stream of events
abort          answer 200 with finish "abort" after `after_tokens`, unasked
short          claim finish "length" after `after_tokens`, before the budget is used up
overrun        say `tokens` more than the budget allows
wrong_length   one log-prob too few from `after_tokens` on;  misaligned: log-probs of other ids
bad_id         an id outside the vocabulary at `after_tokens`
label          report the weights as `label` from `after_tokens` on
clump          hold tokens back and send `tokens` at a time
slow           tokens at 1/`factor` of the rate
refuse         answer HTTP `status`, with `retry_after` as the header if it is not empty
late_abort     aborts take effect `seconds` late            (engine-wide, until cleared)
lose_abort     the next abort is answered 200 and does nothing  (engine-wide)
load_fail      the next weight update fails                  load_slow: takes `seconds` longer
"""

from collections.abc import Callable
from enum import StrEnum

from pydantic import Field

from workflows.messages.base import Message


class FaultKind(StrEnum):
    DIE = "die"
    HANG = "hang"
    STALL = "stall"
    CLOSE = "close"
    CLOSE_DONE = "close_done"
    TORN = "torn"
    NO_DONE = "no_done"
    GARBAGE = "garbage"
    ABORT = "abort"
    SHORT = "short"
    OVERRUN = "overrun"
    WRONG_LENGTH = "wrong_length"
    MISALIGNED = "misaligned"
    BAD_ID = "bad_id"
    LABEL = "label"
    CLUMP = "clump"
    SLOW = "slow"
    REFUSE = "refuse"
    LATE_ABORT = "late_abort"
    LOSE_ABORT = "lose_abort"
    LOAD_FAIL = "load_fail"
    LOAD_SLOW = "load_slow"


ENGINE_WIDE = frozenset({FaultKind.LATE_ABORT, FaultKind.LOSE_ABORT, FaultKind.LOAD_FAIL, FaultKind.LOAD_SLOW})


class Fault(Message):
    """One armed fault; it strikes the next `times` matching requests (of sessions that start with `session`)."""

    kind: FaultKind
    after_tokens: int = Field(default=0, ge=0)
    times: int = Field(default=1, ge=1)
    session: str = ""
    seconds: float = Field(default=0.2, ge=0)
    factor: float = Field(default=10.0, gt=0)
    tokens: int = Field(default=4, ge=1)
    status: int = 503
    retry_after: str = ""
    label: str = "default"


class Faults:
    """The armed faults of one engine."""

    def __init__(self) -> None:
        self._armed: list[tuple[Fault, int]] = []

    def arm(self, fault: Fault) -> None:
        self._armed.append((fault, fault.times))

    def clear(self) -> None:
        self._armed.clear()

    def listed(self) -> list[dict]:
        return [{**fault.model_dump(mode="json"), "left": left} for fault, left in self._armed]

    def take(self, session: str) -> Fault | None:
        """The fault that strikes a request of `session` that arrives now."""
        return self._take(lambda fault: fault.kind not in ENGINE_WIDE and session.startswith(fault.session))

    def take_one(self, kind: FaultKind) -> Fault | None:
        """The next armed fault of an engine-wide kind, used up by this."""
        return self._take(lambda fault: fault.kind is kind)

    def abort_delay(self) -> float:
        """Seconds by which aborts are late now."""
        return max((fault.seconds for fault, _ in self._armed if fault.kind is FaultKind.LATE_ABORT), default=0.0)

    def _take(self, matches: Callable[[Fault], bool]) -> Fault | None:
        for index, (fault, left) in enumerate(self._armed):
            if matches(fault):
                if left == 1:
                    del self._armed[index]
                else:
                    self._armed[index] = (fault, left - 1)
                return fault
        return None
