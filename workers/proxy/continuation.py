"""What one model request has so far, however many engines it ran on.

Invariants: every id is kept once, with one log-prob and one weight version; the budget is that of one request; the
next segment is asked for exactly what is missing. It knows no engine, no text and no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from workflows.messages.burst import Sampling
from workflows.messages.errors import EngineUnavailable


@dataclass(frozen=True)
class Piece:
    """New tokens of one segment: ids, log-probs (natural, of the sampled ids) and weight versions, equally long."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


@dataclass
class Continuation:
    """`prompt`: ids the request started with; `budget`: output tokens it may have in all.

    `floor`: weights that have worked on it, even if they have said nothing yet.
    """

    prompt: list[int]
    budget: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    floor: int | None = None

    @property
    def remaining(self) -> int:
        return self.budget - len(self.ids)

    @property
    def next_input(self) -> list[int]:
        """What a segment that starts now must be conditioned on."""
        return [*self.prompt, *self.ids]

    @property
    def newest_version(self) -> int | None:
        """No later segment may run on older weights than this."""
        newest = max(self.versions, default=None)  # not simply the last: the record says what happened
        known = [version for version in (self.floor, newest) if version is not None]
        return max(known, default=None)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Ordered (weight version, tokens), summing to the output so far."""
        return [(version, len(list(run))) for version, run in groupby(self.versions)]

    def accept(self, piece: Piece, *, only: int | None = None) -> None:
        """Keep a piece, or its first `only` tokens (a stop string ended there)."""
        count = len(piece.ids) if only is None else only
        self.ids.extend(piece.ids[:count])
        self.logprobs.extend(piece.logprobs[:count])
        self.versions.extend(piece.versions[:count])

    def newer_than(self, version: int, start: int) -> int:
        """How many of the tokens from output position `start` on are of newer weights than `version`."""
        return sum(found > version for found in self.versions[start:])

    def restamp(self, start: int, versions: Sequence[int]) -> None:
        """An engine's last word on the versions of the tokens from output position `start` on."""
        kept = len(self.versions) - start
        if len(versions) < kept:
            raise EngineUnavailable(f"versions of {len(versions)} tokens for {kept}")
        self.versions[start:] = versions[:kept]


def carries_over(sampling: Sampling, constrained: bool) -> bool:
    """Whether an answer can go on elsewhere from its tokens alone.

    Engines count penalties over, and follow a grammar along, what they themselves have sampled; sent as a prompt, the
    same tokens start both anew.
    """
    return not constrained and not sampling.penalises


def versions_of(tokens: int, newest: int, before: int) -> tuple[int, ...]:
    """Versions of a piece whose engine has named only that of its `newest` token; `before`: of the token before it.

    Where they differ, nobody knows yet at which token the weights changed. Until the engine's last word, all but the
    newest count as sampled by the older weights: staleness is never understated.
    """
    return (*((min(before, newest),) * (tokens - 1)), *((newest,) * min(1, tokens)))


def check_piece(piece: Piece, remaining: int, vocab_size: int) -> None:
    """Raises EngineUnavailable if an engine's piece cannot be trusted."""
    if not len(piece.ids) == len(piece.logprobs) == len(piece.versions):
        raise EngineUnavailable(
            f"{len(piece.ids)} ids, {len(piece.logprobs)} log-probs, {len(piece.versions)} versions in one piece"
        )
    if len(piece.ids) > remaining:
        raise EngineUnavailable(f"{len(piece.ids)} tokens where {remaining} were asked for")
    if piece.ids and not (min(piece.ids) >= 0 and max(piece.ids) < vocab_size):
        raise EngineUnavailable("an id outside the vocabulary")
