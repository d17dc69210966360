"""Which paths of an execution are trained.

Take the highest role class that still has unused targets; draw one of its leaves with probability proportional to
its unused targets; mark the whole root-to-leaf path as used; repeat until nothing is left or `limit` paths are
chosen. A target that two paths share is thus trained once, on the path chosen first.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from activities.trajectories.roles import ROLE_PRIORITY, rank
from activities.trajectories.tree import Path, shared_prefix

MOST_PATHS = 5
"""J_max."""


@dataclass(frozen=True, eq=False)
class SelectedPath:
    """A path and which of its targets it trains (bool, one per id)."""

    path: Path
    targets: np.ndarray


def select_paths(
    paths: Sequence[Path],
    *,
    seed: str,
    limit: int = MOST_PATHS,
    priority: Sequence[str] = ROLE_PRIORITY,
) -> list[SelectedPath]:
    """The chosen paths in the order they were drawn. The same seed and paths give the same choice."""
    ranked = [(place, path, path.targets) for path in paths if (place := rank(path.leaf.role, priority)) is not None]
    draw = random.Random(seed)
    chosen: list[SelectedPath] = []
    while len(chosen) < limit:
        left = [entry for entry in ranked if entry[2].any()]
        if not left:
            break
        highest = min(place for place, _, _ in left)
        candidates = [entry for entry in left if entry[0] == highest]
        _, path, targets = draw.choices(candidates, weights=[int(entry[2].sum()) for entry in candidates])[0]
        chosen.append(SelectedPath(path, targets.copy()))
        for _, other, unused in ranked:
            unused[: shared_prefix(other.ids, path.ids)] = False
    return chosen
