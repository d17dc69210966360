"""The text of one answer as it grows: characters never cut, stop strings honoured across chunks and reroutes.

Invariants: what was shown is a prefix of the answer's final text; text that may turn out to be the beginning of a stop
string is held back. It lives with the request, so its state survives a move to another engine.
"""

from collections.abc import Sequence

from infra.tokenizer import Detokenizer


class AnswerText:
    """`stops`: non-empty strings that end the answer and are not part of it."""

    def __init__(self, decoder: Detokenizer, stops: Sequence[str]) -> None:
        self._decoder, self._stops = decoder, tuple(stops)
        self._held = ""
        self.shown = ""
        self.stopped = False

    def push(self, ids: Sequence[int]) -> tuple[str, int]:
        """Text to show now, and how many of `ids` belong to the answer: fewer than given once a stop is complete."""
        new: list[str] = []
        for used, token in enumerate(ids, start=1):
            new.append(self._advance(self._decoder.push([token])))
            if self.stopped:
                return "".join(new), used
        return "".join(new), len(ids)

    def finish(self) -> str:
        """What is still to be shown at the end: held-back text, and U+FFFD for a character that was cut off."""
        if self.stopped:
            return ""
        rest = self._advance(self._decoder.flush())
        if not self.stopped:
            rest += self._held
            self.shown += self._held
            self._held = ""
        return rest

    def _advance(self, text: str) -> str:
        pending = self._held + text
        found = [at for at in (pending.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            safe, self._held = pending[: min(found)], ""
        else:
            keep = held_back(pending, self._stops)
            safe, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
        self.shown += safe
        return safe


def held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(stop.startswith(end) for stop in stops):
            return length
    return 0
