"""An execution's tree with the paths that could be trained and those that are: a pure function of what is on record."""

from collections.abc import Sequence
from dataclasses import dataclass

from activities.trajectories.calls import Call
from activities.trajectories.selection import ChosenPath, Leaf, candidates, select_paths
from activities.trajectories.tree import Tree
from workflows.messages.burst import Selection


@dataclass(frozen=True, eq=False)
class GrownTree:
    """`seed` and `selection` are all that the choice depends on beside the calls."""

    execution: str
    seed: int
    selection: Selection
    tree: Tree
    leaves: list[Leaf]
    chosen: list[ChosenPath]


def grow(execution: str, recorded: Sequence[Call], *, seed: int, selection: Selection) -> GrownTree:
    """Tree and selection of an execution, the same whenever it is asked for."""
    priority = selection.role_priority
    tree = Tree(recorded, priority)
    chosen = select_paths(tree, seed=f"{execution}/{seed}", limit=selection.most_paths, priority=priority)
    return GrownTree(execution, seed, selection, tree, candidates(tree), chosen)
