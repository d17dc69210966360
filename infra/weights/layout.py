"""Named tensors in one flat buffer: what is registered once and read one-sided in one piece.

The layout follows from names and shapes alone, so two processes with the same model agree on it without talking.
"""

import math
from collections.abc import Mapping
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
        return sum(math.prod(shape) for _, shape in self.shapes)

    def views(self, flat: "Tensor") -> dict[str, "Tensor"]:
        """Name -> view into `flat` (1-D, at least `elements` long). Writing a view writes the buffer."""
        out, offset = {}, 0
        for name, shape in self.shapes:
            size = math.prod(shape)
            out[name] = flat[offset : offset + size].view(shape)
            offset += size
        return out
