"""A bounded pool of equal pages in one block of host memory, found by key, evicted by age, kept while pinned.

Invariants: a page's bytes never change between the moment it is filled and the moment its slot is free again; a pinned
page is never evicted; a page dropped while pinned (`drop_all`) is found by nobody new, but stays readable for the
holder of the pin. Not thread-safe: the store holds the lock.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch

from infra.transfer import checksum


class PagePool:
    """`memory` is uint8 of shape [pages, page_bytes]; register it before peers are told of it."""

    def __init__(self, pages: int, page_bytes: int) -> None:
        self.memory = torch.zeros((pages, page_bytes), dtype=torch.uint8)
        self.page_bytes = page_bytes
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._free = list(range(pages - 1, -1, -1))
        self._pinned: set[str] = set()
        self._sealed: dict[str, int] = {}
        self._checksums: dict[int, int] = {}

    @property
    def used(self) -> int:
        return len(self._slots) + len(self._sealed)

    @property
    def pinned(self) -> int:
        return len(self._pinned)

    def __contains__(self, key: str) -> bool:
        return key in self._slots

    def prefix(self, keys: Sequence[str]) -> int:
        """How many of `keys`, from the first on, are here; those become the youngest, the first of them last, so that
        eviction takes the end of a prefix before its beginning."""
        found = 0
        while found < len(keys) and keys[found] in self._slots:
            found += 1
        for key in reversed(keys[:found]):
            self._slots.move_to_end(key)
        return found

    def rows(self, keys: Sequence[str]) -> torch.Tensor | None:
        """A copy of these pages, [n, page_bytes]; None unless all are here."""
        if not all(key in self._slots for key in keys):
            return None
        return self.memory[[self._slots[key] for key in keys]]

    def put(self, keys: Sequence[str], rows: torch.Tensor) -> int:
        """Store pages that are not here yet; returns how many of `keys`, from the first on, are now here."""
        protected = set(keys)
        for done, key in enumerate(keys):
            if key in self._slots:
                continue
            slot = self._take_slot(protected)
            if slot is None:
                return done
            self.memory[slot].copy_(rows[done])
            self._slots[key] = slot
        self.prefix(keys)
        return len(keys)

    def readable(self, key: str) -> tuple[torch.Tensor, int] | None:
        """A page's memory and CRC-32, also of a sealed one."""
        slot = self._slots.get(key, self._sealed.get(key))
        if slot is None:
            return None
        if slot not in self._checksums:
            self._checksums[slot] = checksum(self.memory[slot])
        return self.memory[slot], self._checksums[slot]

    def pin(self, keys: Iterable[str]) -> None:
        """Pin those of `keys` that are here."""
        self._pinned.update(key for key in keys if key in self._slots)

    def unpin_all(self) -> int:
        """End every pin; returns how many there were."""
        count = len(self._pinned)
        self._pinned.clear()
        for slot in self._sealed.values():
            self._release_slot(slot)
        self._sealed.clear()
        return count

    def drop_all(self) -> None:
        """Forget every page. Pinned ones are sealed: readable for the pin's holder, found by no lookup."""
        for key, slot in self._slots.items():
            if key in self._pinned and key not in self._sealed:
                self._sealed[key] = slot
            else:
                self._release_slot(slot)
        self._slots.clear()

    def _take_slot(self, protected: set[str]) -> int | None:
        if not self._free:
            oldest = next((key for key in self._slots if key not in self._pinned and key not in protected), None)
            if oldest is None:
                return None
            self._release_slot(self._slots.pop(oldest))
        return self._free.pop()

    def _release_slot(self, slot: int) -> None:
        self._checksums.pop(slot, None)
        self._free.append(slot)
