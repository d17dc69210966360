"""Log-probs of sampled tokens, as the OpenAI dialects tell them: of the sampled token alone, never of alternatives.

An entry exists for every output token, so their number is the output token count of the usage.
"""

from collections.abc import Callable, Sequence
from typing import Any

from workers.proxy.call import LiveCall


class Logprobs:
    """Hands out the entries of one reply in order, each once. `spell`: bytes of a token id."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell
        self._told = 0

    def more(self, call: LiveCall) -> list[dict[str, Any]]:
        """Entries of the tokens that were not told yet."""
        positions = range(self._told, min(len(call.so_far.ids), len(call.so_far.logprobs)))
        self._told = max(self._told, positions.stop)
        return self.of(call, positions)

    def of(self, call: LiveCall, positions: Sequence[int]) -> list[dict[str, Any]]:
        """Entries of some of the call's output tokens."""
        entries: list[dict[str, Any]] = []
        for at in positions:
            spelled = self._spell(call.so_far.ids[at])
            entries.append(
                {
                    "token": spelled.decode(errors="replace"),
                    "logprob": call.so_far.logprobs[at],
                    "bytes": list(spelled),
                    "top_logprobs": [],
                }
            )
        return entries
