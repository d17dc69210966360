"""Named tensors in one flat buffer: what is registered once and read one-sided in one piece.

The layout follows from names and shapes alone, so two processes with the same model agree on it without talking.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FlatLayout:
    """Where each tensor lies; offsets and sizes are in elements of one dtype."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> "FlatLayout":
        """The layout of `shapes`, sorted by name whatever order they come in."""
        return cls(tuple(sorted(shapes.items())))

    @property
    def elements(self) -> int:
        return sum(size for _, _, size in self.sizes())

    def sizes(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Name, shape and elements of each tensor, in the order in which they lie."""
        for name, shape in self.shapes:
            yield name, shape, math.prod(shape)

    def views(self, flat: "Tensor") -> dict[str, "Tensor"]:
        """Name -> view into `flat` (1-D, at least `elements` long). Writing a view writes the buffer."""
        out, offset = {}, 0
        for name, shape, size in self.sizes():
            out[name] = flat[offset : offset + size].view(shape)
            offset += size
        return out
