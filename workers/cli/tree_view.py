"""An execution's tree as branches of turns, for the terminal and the page.

A branch is a call that is one for a reason, and the calls that simply go on from it; it hangs below the branch whose
ids it shares longest.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from activities.trajectories.branches import Step, steps
from activities.trajectories.growth import GrownTree
from activities.trajectories.message_nodes import count_messages
from activities.trajectories.tree import ROOT, Tree

Decode = Callable[[Sequence[int]], str]


@dataclass
class CallView:
    """One call. `trains`: chosen path (from 1) -> targets of this call that it trains. `shared`: leading ids that were
    there before; `dropped`: why none of it can be trained, empty if it can."""

    call: str
    sequence: int
    role: str
    state: str
    prompt_tokens: int
    new_tokens: int
    output_tokens: int
    shared: int
    versions: list[list[int]]
    trains: dict[int, int]
    dropped: str = ""
    prompt_text: str = ""
    output_text: str = ""


@dataclass
class BranchView:
    """`reason`: why it is a branch; `depth`: tokens it shares with the branch above; `path`: the chosen path (from 1)
    that ends here; `leaf`: whether a path that could be trained ends here."""

    branch: int
    above: int | None
    reason: str
    depth: int
    role: str
    calls: list[CallView] = field(default_factory=list)
    path: int | None = None
    leaf: bool = False

    @property
    def targets(self) -> int:
        return sum(sum(call.trains.values()) for call in self.calls)


@dataclass
class TreeView:
    """Everything that is shown. `figures`: counts of the whole tree."""

    execution: str
    figures: dict[str, Any]
    branches: list[BranchView]

    def below(self, branch: int | None) -> list[BranchView]:
        """Branches that hang directly below one, in order of arrival; None: those that share nothing."""
        return self._below.get(branch, [])

    @cached_property
    def _below(self) -> dict[int | None, list[BranchView]]:
        found: dict[int | None, list[BranchView]] = {}
        for one in self.branches:
            found.setdefault(one.above, []).append(one)
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def view(grown: GrownTree, *, turn_starts: Sequence[int] = (), decode: Decode | None = None) -> TreeView:
    """The tree of an execution. With `decode`, calls carry the text they added and said."""
    tree, found = grown.tree, steps(grown.tree)
    branch_of = _branches(found)
    trains = _trained_by(grown)
    ends = {chosen.leaf.call: number for number, chosen in enumerate(grown.chosen, 1)}
    leaves = {leaf.call for leaf in grown.leaves}
    branches: dict[int, BranchView] = {}
    for index, step in enumerate(found):
        number = branch_of[index]
        if number not in branches:
            above = _above(tree, index, step)
            branches[number] = BranchView(
                branch=number,
                above=None if above is None else branch_of[above],
                reason=step.reason or "start",
                depth=step.shared,
                role=tree.calls[index].role,
            )
        branch = branches[number]
        branch.calls.append(_call(tree, index, step, trains.get(index, {}), grown.selection.role_priority, decode))
        branch.path = ends.get(index, branch.path)
        branch.leaf = branch.leaf or index in leaves
    return TreeView(grown.execution, _figures(grown, turn_starts), list(branches.values()))


def _figures(grown: GrownTree, turn_starts: Sequence[int]) -> dict[str, Any]:
    tree = grown.tree
    messages = count_messages(tree, grown.leaves, turn_starts)
    return {
        "calls": len(tree.calls),
        "candidate paths": len(grown.leaves),
        "chosen paths": len(grown.chosen),
        "tokens": tree.tokens,
        "conditioned on": sum(call.prompt_tokens for call in tree.calls),
        "target tokens": sum(tree.nodes[node].length for path in grown.chosen for node in path.trains),
        "message nodes": messages.unique,
        "expanded": messages.expanded,
        "role priority": " > ".join(grown.selection.role_priority),
        "most paths": grown.selection.most_paths,
        "seed": f"{grown.execution}/{grown.seed}",
    }


def _branches(found: Sequence[Step]) -> list[int]:
    """The branch of every call, named by its first call."""
    branch_of: list[int] = []
    for index, step in enumerate(found):
        goes_on = step.reason is None and step.parent is not None
        branch_of.append(branch_of[step.parent] if goes_on and step.parent is not None else index)
    return branch_of


def _above(tree: Tree, index: int, step: Step) -> int | None:
    """The call that a branch hangs below: the one it continues, or the one that first said what it shares last."""
    if step.parent is not None:
        return step.parent
    node = tree.ends[index]
    while node != ROOT and tree.nodes[node].depth >= step.shared:
        node = tree.nodes[node].parent
    return None if node == ROOT else tree.nodes[node].created_by


def _trained_by(grown: GrownTree) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = {}
    for number, path in enumerate(grown.chosen, 1):
        for node in path.trains:
            mine = found.setdefault(grown.tree.nodes[node].source, {})
            mine[number] = mine.get(number, 0) + grown.tree.nodes[node].length
    return found


def _call(
    tree: Tree, index: int, step: Step, trains: dict[int, int], priority: Sequence[str], decode: Decode | None
) -> CallView:
    call = tree.calls[index]
    dropped = ""
    if not call.trainable:
        dropped = f"answer {call.state}" if call.state != "finished" else "nothing said"
    elif call.role not in priority:
        dropped = f"{call.role} calls are not trained"
    return CallView(
        call=call.call,
        sequence=call.sequence,
        role=call.role,
        state=call.state,
        prompt_tokens=call.prompt_tokens,
        new_tokens=max(call.prompt_tokens - step.shared, 0),
        output_tokens=len(call.output),
        shared=step.shared,
        versions=[list(span) for span in call.spans],
        trains=trains,
        dropped=dropped,
        prompt_text=decode(call.tail.tolist()) if decode else "",
        output_text=decode(call.output.tolist()) if decode else "",
    )
