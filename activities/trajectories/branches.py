"""How the calls of a tree follow each other, and why one of them is a branch.

A call continues the call whose ids, to the last one, are the longest beginning of its prompt; identical twins are thus
told apart by what they answered. Reasons are read from the shape of the tree, the recorded roles and what the recorder
said about the template; they explain, and nothing is trained or left out because of one.
"""

from dataclasses import dataclass
from enum import StrEnum

from activities.trajectories.tree import ROOT, Tree


class Reason(StrEnum):
    """Why a call is a branch."""

    START = "start"
    SUB_AGENT = "sub-agent"
    SUMMARY = "summary"
    COMPACTION = "compaction"
    RETRIED = "retried"
    SAMPLED_AGAIN = "sampled again"
    TEMPLATE = "rewritten by the template"
    TOOLS = "other tools"
    EDITED = "edited history"
    UNRELATED = "unrelated"
    SIDE = "side call"


_RECORDED = {"template": Reason.TEMPLATE, "tools": Reason.TOOLS}
"""What only the recorder can tell: the ids alone look like an edited history."""


@dataclass(frozen=True)
class Step:
    """One call's place among the others, by index. `reason`: None if it simply goes on where `parent` ended. `shared`:
    how many leading ids of it were there before it came."""

    parent: int | None
    reason: Reason | None
    shared: int


def steps(tree: Tree) -> list[Step]:
    """One per call, in order of arrival."""
    history = _History(tree)
    return [history.next_step(index) for index in range(len(tree.calls))]


def branch_of(call: int, found: list[Step]) -> Reason:
    """Why the path that ends with `call` is a path of its own: the reason of the last branch on the way to it."""
    while (step := found[call]).reason is None and step.parent is not None:
        call = step.parent
    return step.reason or Reason.START


class _History:
    """What has been seen up to one call."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._ended: dict[int, int] = {}  # node -> the call that ended there first
        self._asked: dict[int, list[int]] = {}  # node -> calls whose prompt ended there
        self._continued: set[int] = set()
        self._summarised: set[str] = set()  # "main", "sub-agent": a summary was written and nothing came after it yet

    def next_step(self, index: int) -> Step:
        tree = self._tree
        parent, prompt_end = self._parent(tree.prompt_ends[index]), tree.prompt_ends[index]
        reason = self._reason(index, parent, prompt_end)
        agent, _, summary = tree.calls[index].role.partition("-summary")
        if reason not in (Reason.SIDE, Reason.SUMMARY) and parent is not None:
            self._continued.add(parent)
        self._asked.setdefault(prompt_end, []).append(index)
        self._ended.setdefault(tree.ends[index], index)
        if tree.calls[index].role.endswith("-summary"):
            self._summarised.add(agent)
        elif reason is not Reason.SIDE and not summary:
            self._summarised.discard(agent)
        return Step(parent, reason, tree.departs[index])

    def _parent(self, node: int) -> int | None:
        while node != ROOT:
            if node in self._ended and len(self._tree.calls[self._ended[node]].output):
                return self._ended[node]
            node = self._tree.nodes[node].parent
        return None

    def _reason(self, index: int, parent: int | None, prompt_end: int) -> Reason | None:
        calls, call = self._tree.calls, self._tree.calls[index]
        agent = call.role.removesuffix("-summary")
        if call.role == "side":
            return Reason.SIDE
        if call.role.endswith("-summary"):
            return Reason.SUMMARY
        asked = self._asked.get(prompt_end)
        goes_on = parent is not None and parent not in self._continued
        if call.role == "sub-agent" and (
            parent is None or calls[parent].role not in ("sub-agent", "sub-agent-summary")
        ):
            return Reason.COMPACTION if agent in self._summarised else Reason.SUB_AGENT
        if asked:
            undelivered = all(calls[other].state != "finished" for other in asked)
            return Reason.RETRIED if undelivered else Reason.SAMPLED_AGAIN
        if goes_on:
            return None
        if agent in self._summarised:
            return Reason.COMPACTION
        if index == 0:
            return Reason.START
        if call.fork_reason in _RECORDED:
            return _RECORDED[call.fork_reason]
        if self._tree.departs[index] > 0:
            return Reason.EDITED
        is_first = all(other.role != call.role for other in calls[:index])
        return Reason.START if is_first else Reason.UNRELATED
