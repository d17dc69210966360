"""A prefix cache in which every cached token is one entry, keyed by its chain state and the request's KV key.

As in SGLang, the last prompt token is always computed, and the KV key is whatever the caller passes as `extra_key`:
the weight version is not in it by itself. Least recently used tokens go first, tails before heads.
"""

from collections import OrderedDict
from collections.abc import Sequence

from workers.cell.rollout.paced.tokens import mix, salt


class PrefixCache:
    def __init__(self) -> None:
        self._entries: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, key: str, states: Sequence[int]) -> int:
        """How many leading tokens of a prompt are cached; at most all but the last."""
        salted, found = salt(key), 0
        for state in states[:-1]:
            if mix(state ^ salted) not in self._entries:
                break
            found += 1
        return found

    def insert(self, key: str, states: Sequence[int]) -> None:
        """Keep a conversation's tokens; the head becomes the most recent."""
        salted = salt(key)
        for state in reversed(states):
            entry = mix(state ^ salted)
            self._entries[entry] = None
            self._entries.move_to_end(entry)

    def shrink(self, room: int) -> None:
        """Evict until at most `room` tokens are cached."""
        while len(self._entries) > max(0, room):
            self._entries.popitem(last=False)

    def flush(self) -> None:
        self._entries.clear()
