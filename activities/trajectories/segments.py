"""Arranging paths into segments: depth-first, and no more segments than there are branches."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """A stretch that all or none of the arranged paths run through: `pieces` in order, `parent` an earlier segment, -1
    for a root."""

    parent: int
    pieces: tuple[int, ...]


def arrange(paths: Sequence[Sequence[int]]) -> list[Segment]:
    """Segments of paths that are given as pieces from a root to an end, in depth-first order.

    A piece is in at most one place of the tree; siblings keep the order in which the paths first reach them. A path
    may end where another goes on: that is a branching point too, so that each path ends with a segment.
    """
    children: dict[int, dict[int, None]] = defaultdict(dict)
    for path in paths:
        above = -1
        for piece in path:
            children[above][piece] = None
            above = piece
    ends = {path[-1] for path in paths if path}
    found: list[Segment] = []
    waiting = [(-1, root) for root in reversed(children[-1])]
    while waiting:
        parent, piece = waiting.pop()
        pieces = [piece]
        while len(children[piece]) == 1 and piece not in ends:
            (piece,) = children[piece]
            pieces.append(piece)
        waiting.extend((len(found), child) for child in reversed(children[piece]))
        found.append(Segment(parent, tuple(pieces)))
    return found
