"""Seeded tokens: the next one is a pure function of (weights, seed, every token before it).

A conversation is folded into one 64-bit chain state, so a token costs O(1) and two engines agree wherever the prompt
was cut. Nothing here knows requests, time or HTTP.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """The finaliser of splitmix64: 64 bits to 64 well-stirred bits."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=4096)
def salt(text: str) -> int:
    """A 64-bit salt of any text; the empty text salts nothing."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") if text else 0


def advance(state: int, token: int) -> int:
    """The chain state after one more token."""
    return mix(state ^ ((token + 1) * _GOLDEN & MASK))


def chain(tokens: Sequence[int]) -> list[int]:
    """Chain state after each token of a prompt; the state before the first is 0."""
    state, states = 0, []
    for token in tokens:
        state = advance(state, token)
        states.append(state)
    return states


@dataclass(frozen=True)
class SeededModel:
    """What stands for the policy. `ordinary` are the ids it may say, besides the ids that end an answer."""

    ordinary: tuple[int, ...]
    mean_output_tokens: int
    seed: int

    def next_token(self, weights: str, session: str, state: int, ends: Sequence[int]) -> tuple[int, float]:
        """Next id and its log-prob (natural logarithm, in (-4.01, -0.01]) after chain state `state`.

        `ends`: the ids that may end this answer; empty for one that must run to its budget.
        """
        drawn = mix(state ^ salt(f"{weights}|{self.seed}|{session}"))
        if ends and mix(drawn) % self.mean_output_tokens == 0:
            token = ends[0]
        else:
            token = self.ordinary[drawn % len(self.ordinary)]
        return token, logprob(drawn)


def logprob(drawn: int) -> float:
    """A log-prob that belongs to one draw: reproducible, never zero."""
    return -0.01 - 4.0 * ((drawn >> 40) / (1 << 24))
