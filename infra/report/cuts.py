"""Requests that a role change took elsewhere: how long their harnesses heard nothing, what KV they found again.

Two ways of moving are told apart. A request in flight is cut and goes on in its next segment: its harness hears nothing
from the last token of the one to the first token of the other. An execution inside a tool call moves unheard; its next
call begins on another engine, and what it shares with the call before is there or is computed again.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infra.report.changes import LEAVING, Change

SKEW_SECONDS = 0.25
"""The proxy's clock and the control worker's may differ by that much."""


@dataclass(frozen=True)
class Cut:
    """A request that went on in another segment. Moments in seconds since the epoch.

    `quiet_from`: its last token before (else when it was cut); `heard_at`: its first token after (else the end of that
    segment); None while nothing has come. `prompt_tokens` were sent again, `cached_tokens` of them found in a cache
    (None while the segment is open); across a publish none can be.
    """

    call: str
    cell: int
    at: float
    destination: int
    quiet_from: float
    heard_at: float | None
    prompt_tokens: int
    cached_tokens: int | None

    @property
    def pause_seconds(self) -> float | None:
        return None if self.heard_at is None else max(0.0, self.heard_at - self.quiet_from)


@dataclass(frozen=True)
class Resumed:
    """A call that began on another cell than the call it goes on from had ended on.

    `left_at`: when that one ended; `begun_at`: when this one was sent. `shared_tokens` of its prompt are that call's,
    `cached_tokens` were found in a cache (None while it is open).
    """

    call: str
    cell: int
    left_at: float
    begun_at: float
    destination: int
    shared_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True)
class Moved:
    """What one transition did to the requests of its cell. Seconds are summed over requests; `longest` is one's."""

    requests: int = 0
    resumed: int = 0
    pause_seconds: float = 0.0
    longest_pause_seconds: float = 0.0
    unheard: int = 0
    kv_reused: int = 0
    kv_recomputed: int = 0


def attributed(
    changes: Iterable[Change], cuts: Iterable[Cut], resumed: Iterable[Resumed]
) -> tuple[dict[str, Moved], tuple[Cut, ...]]:
    """Transition -> what it moved; and the cuts that no transition explains (an engine died, or broke off).

    A cut belongs to the transition of its cell during which it happened; a resumed call to the first departure of the
    cell after its predecessor had ended, if the call began after that.
    """
    by_cell: dict[int, list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.started_at):
        by_cell[change.cell].append(change)
    cut_of: dict[str, list[Cut]] = defaultdict(list)
    resumed_of: dict[str, list[Resumed]] = defaultdict(list)
    unexplained = []
    for cut in cuts:
        change = _during(by_cell[cut.cell], cut.at)
        if change is None:
            unexplained.append(cut)
        else:
            cut_of[change.transition].append(cut)
    for call in resumed:
        change = _departure(by_cell[call.cell], call)
        if change is not None:
            resumed_of[change.transition].append(call)
    names = cut_of.keys() | resumed_of.keys()
    return {name: _moved(cut_of[name], resumed_of[name]) for name in names}, tuple(unexplained)


def _during(changes: Sequence[Change], moment: float) -> Change | None:
    for change in reversed(changes):
        if change.started_at - SKEW_SECONDS <= moment <= change.ended_at + SKEW_SECONDS:
            return change
    return None


def _departure(changes: Sequence[Change], call: Resumed) -> Change | None:
    for change in changes:
        leaves = change.direction in LEAVING and change.ended_at + SKEW_SECONDS >= call.left_at
        if leaves and change.started_at - SKEW_SECONDS <= call.begun_at:
            return change
    return None


def _moved(cuts: Sequence[Cut], resumed: Sequence[Resumed]) -> Moved:
    pauses = [cut.pause_seconds for cut in cuts if cut.pause_seconds is not None]
    ended = [(cut.cached_tokens, cut.prompt_tokens) for cut in cuts if cut.cached_tokens is not None]
    ended += [
        (min(call.cached_tokens, call.shared_tokens), call.shared_tokens)
        for call in resumed
        if call.cached_tokens is not None
    ]
    return Moved(
        requests=len(cuts),
        resumed=len(resumed),
        pause_seconds=sum(pauses),
        longest_pause_seconds=max(pauses, default=0.0),
        unheard=len(cuts) - len(pauses),
        kv_reused=sum(cached for cached, _ in ended),
        kv_recomputed=sum(max(0, tokens - cached) for cached, tokens in ended),
    )
