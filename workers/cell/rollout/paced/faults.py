"""Faults on request: what a test or a drill makes an engine do wrong.

die            kill this process after `after_tokens` tokens of a matching request
hang           say no more after `after_tokens`
close          end the HTTP stream after `after_tokens` without a finish;  close_done: with a literal [DONE]
abort          answer 200 with finish "abort" after `after_tokens`, unasked
wrong_length   one log-prob too few from `after_tokens` on
bad_id         an id outside the vocabulary at `after_tokens`
slow           tokens at 1/`factor` of the rate
refuse         answer HTTP `status`
late_abort     aborts take effect `seconds` late            (engine-wide, until cleared)
load_fail      the next weight update fails                  load_slow: takes `seconds` longer
"""

from enum import StrEnum

from pydantic import Field

from workflows.messages.base import Message


class FaultKind(StrEnum):
    DIE = "die"
    HANG = "hang"
    CLOSE = "close"
    CLOSE_DONE = "close_done"
    NO_DONE = "no_done"
    ABORT = "abort"
    WRONG_LENGTH = "wrong_length"
    BAD_ID = "bad_id"
    SLOW = "slow"
    REFUSE = "refuse"
    LATE_ABORT = "late_abort"
    LOAD_FAIL = "load_fail"
    LOAD_SLOW = "load_slow"


ENGINE_WIDE = frozenset({FaultKind.LATE_ABORT, FaultKind.LOAD_FAIL, FaultKind.LOAD_SLOW})


class Fault(Message):
    """One armed fault; it strikes the next `times` matching requests (of sessions that start with `session`)."""

    kind: FaultKind
    after_tokens: int = Field(default=0, ge=0)
    times: int = Field(default=1, ge=1)
    session: str = ""
    seconds: float = Field(default=0.2, ge=0)
    factor: float = Field(default=10.0, gt=0)
    status: int = 503


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

    def take_load(self, kind: FaultKind) -> Fault | None:
        return self._take(lambda fault: fault.kind is kind)

    def abort_delay(self) -> float:
        """Seconds by which aborts are late now."""
        return max((fault.seconds for fault, _ in self._armed if fault.kind is FaultKind.LATE_ABORT), default=0.0)

    def _take(self, matches) -> Fault | None:
        for index, (fault, left) in enumerate(self._armed):
            if matches(fault):
                if left == 1:
                    del self._armed[index]
                else:
                    self._armed[index] = (fault, left - 1)
                return fault
        return None
