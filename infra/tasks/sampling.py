"""The order in which tasks are drawn: a pure function of a seed and a position, so a cursor is all there is to keep."""

import random


def positions(size: int, *, seed: int, start: int, count: int) -> tuple[int, ...]:
    """Indices into a set of `size` tasks at positions `start`, `start + 1`, ... of an endless order.

    Each run of `size` positions (an epoch) is a permutation of all tasks, drawn from the seed and the epoch's number:
    a task comes back only after every other has come. Raises ValueError for an empty set or a negative number.
    """
    if size < 1 or start < 0 or count < 0:
        raise ValueError(f"need size >= 1, start >= 0 and count >= 0, got {size}, {start}, {count}")
    found: list[int] = []
    for epoch in range(start // size, (start + count - 1) // size + 1 if count else 0):
        order = list(range(size))
        random.Random(f"tasks/{seed}/{epoch}").shuffle(order)
        first = epoch * size
        found += order[max(start - first, 0) : max(start + count - first, 0)]
    return tuple(found)
