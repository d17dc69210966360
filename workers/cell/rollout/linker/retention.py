"""Who stands on which pages, and the one lease that keeps them: plain bookkeeping without memory or clock of its own.

Invariants: lease numbers never go backwards; a lease ends exactly once, by acknowledgement, expiry, abandonment or a
newer lease; sessions and prefixes remembered are bounded, the least recently used go first.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from workflows.messages.errors import Fenced, StillHeld

Chain = tuple[str, ...]

MAX_SESSIONS = 4096
MAX_CHAINS = 4
"""Branches remembered per session: the main conversation and a few sub-agents."""


class Sessions:
    """The latest prefixes of each session, as chains of page keys, newest last."""

    def __init__(self) -> None:
        self._chains: OrderedDict[str, list[Chain]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chains)

    def note(self, session: str, chain: Chain) -> None:
        """A chain replaces those it extends; one that another extends already adds nothing."""
        known = self._chains.pop(session, [])
        longer = [other for other in known if other[: len(chain)] == chain]
        kept = [other for other in known if chain[: len(other)] != other and other not in longer]
        newest = max(longer, key=len, default=chain)
        self._chains[session] = [*kept, *(other for other in longer if other is not newest), newest][-MAX_CHAINS:]
        while len(self._chains) > MAX_SESSIONS:
            self._chains.popitem(last=False)

    def chains(self, session: str) -> tuple[Chain, ...]:
        return tuple(self._chains.get(session, ()))

    def names(self) -> tuple[str, ...]:
        return tuple(self._chains)

    def clear(self) -> None:
        self._chains.clear()


@dataclass
class Lease:
    """Pages wanted for a hand-off. `expires` is the store's clock, in seconds. `sessions` None: all there are."""

    number: int
    sessions: frozenset[str] | None
    expires: float
    wanted: set[str] = field(default_factory=set)
    held: Sessions = field(default_factory=Sessions)

    def covers(self, session: str) -> bool:
        return self.sessions is None or session in self.sessions

    def note(self, session: str, chain: Chain) -> None:
        self.held.note(session, chain)
        self.wanted.update(chain)


class LeaseDesk:
    """At most one lease at a time, with rising numbers."""

    def __init__(self) -> None:
        self.current: Lease | None = None
        self.highest = -1
        self.expired = 0

    def open(self, number: int, sessions: frozenset[str] | None, expires: float) -> tuple[Lease, bool]:
        """The lease and whether it is new. The same number again returns the same lease; a higher one supersedes it.

        Raises Fenced for an older number, or for one that has ended.
        """
        if self.current is not None and self.current.number == number:
            return self.current, False
        if number <= self.highest:
            raise Fenced(f"lease {number} is older than lease {self.highest}, or has ended")
        self.highest = number
        self.current = Lease(number, sessions, expires)
        return self.current, True

    def get(self, number: int) -> Lease:
        """The current lease, if that is its number. Raises Fenced."""
        if self.current is None or self.current.number != number:
            raise Fenced(f"lease {number} is not held")
        return self.current

    def end(self, number: int) -> bool:
        """True for the one call that ends it. Also a lease never given (or given by an engine that has died since) is
        over after this: should its `open` still arrive, it is refused."""
        if number > self.highest:
            self.highest, self.current = number, None
            return False
        if self.current is None or self.current.number != number:
            return False
        self.current = None
        return True

    def expire(self, now: float) -> bool:
        """End the lease if its time is over."""
        if self.current is None or self.current.expires > now:
            return False
        self.current = None
        self.expired += 1
        return True

    def refuse_early_release(self, number: int) -> None:
        """Raises StillHeld while somebody may still read under this lease."""
        if self.current is not None and self.current.number == number:
            raise StillHeld(f"lease {number} is neither acknowledged nor expired")
