"""A token sequence kept as what it adds to another one, in memory as in the `calls` table.

Each sequence is the first `shared` ids of its parent, then its own. A session of many calls thus costs its unique
tokens, four bytes each, however often they were sent.
"""

from collections.abc import Sequence

import numpy as np

Ids = np.ndarray
"""int32, one dimension."""


class TokenChain:
    """`own`: ids behind the shared ones. Raises ValueError if the parent is shorter than what is shared."""

    __slots__ = ("own", "parent", "shared")

    def __init__(self, parent: "TokenChain | None", shared: int, own: Sequence[int] | Ids) -> None:
        if shared < 0 or shared > (0 if parent is None else len(parent)):
            raise ValueError(f"{shared} ids are shared with a sequence that lacks them")
        self.parent = parent
        self.shared = shared
        self.own: Ids = np.asarray(own, dtype=np.int32)

    def __len__(self) -> int:
        return self.shared + len(self.own)

    def ids(self, end: int | None = None, *, then: Sequence[int] | Ids = ()) -> Ids:
        """The first `end` ids, or all, and `then` behind them. A new array."""
        wanted = len(self) if end is None else min(end, len(self))
        whole = np.empty(wanted + len(then), dtype=np.int32)
        whole[wanted:] = then
        link: TokenChain | None = self
        missing = wanted
        while link is not None and missing > 0:
            if missing > link.shared:
                whole[link.shared : missing] = link.own[: missing - link.shared]
                missing = link.shared
            link = link.parent
        return whole


def common_prefix(one: Ids, other: Ids) -> int:
    """How many leading ids two arrays share."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length
