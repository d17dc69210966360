"""An execution of the case study's shape: 636 requests, 10 candidate paths, 1,347 message nodes, 1,716 expanded."""

import numpy as np
import pytest

from activities.trajectories.calls import Call
from activities.trajectories.message_nodes import MessageCounts, count_messages
from activities.trajectories.selection import candidates, select_paths
from activities.trajectories.tree import Tree

TURN, END = 1, 2
REQUESTS, PATHS, UNIQUE, EXPANDED = 636, 10, 1347, 1716


class Recorder:
    """Writes calls as the proxy does: each prompt is what it shares with its parent, and the new messages."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._draw = np.random.default_rng(0)
        self._lengths: dict[str, int] = {}

    def ask(self, parent: str | None, messages: int, role: str = "main", shared: int | None = None) -> str:
        """A call that adds `messages` messages to what it shares with `parent` (all of it, unless told)."""
        name, length = f"c{len(self.calls)}", 0
        if parent is not None:
            length = self._lengths[parent] if shared is None else shared
        tail = np.concatenate([*(self._message() for _ in range(messages)), np.array([TURN, 3])])
        output = np.append(self._text(), END)
        self.calls.append(
            Call(
                call=name,
                sequence=len(self.calls),
                role=role,
                tail=tail.astype(np.int32),
                output=output.astype(np.int32),
                logprobs=np.zeros(len(output), np.float32),
                spans=((0, len(output)),),
                parent=parent,
                shared=length,
            )
        )
        self._lengths[name] = length + len(tail) + len(output)
        return name

    def turns(self, last: str, count: int, messages: int = 1, role: str = "main") -> str:
        for _ in range(count):
            last = self.ask(last, messages, role)
        return last

    def _message(self) -> np.ndarray:
        return np.concatenate([[TURN, 4], self._text(), [END]])

    def _text(self) -> np.ndarray:
        return self._draw.integers(5, 5000, self._draw.integers(3, 30))


def case_study() -> list[Call]:
    """A main path, two edits of its history, a compaction, an unrelated context, 5 sub-agents: 369 repeats.

    Every request adds an answer and one message; 7 roots and 68 turns add one more: 636 * 2 + 7 + 68 = 1,347.
    """
    record = Recorder()
    first = record.ask(None, 2)
    fork = record.turns(first, 90)  # ends after 2 + 1 + 90 * 2 = 183 messages
    edge = record.turns(fork, 1)  # 185
    record.turns(edge, 9)
    record.turns(fork, 20)  # an edited history: repeats 183 messages
    record.turns(edge, 20, messages=1)  # and another one: repeats 185
    system = len(record.calls[0].tail[: list(record.calls[0].tail).index(END) + 1])
    compacted = record.ask(first, 1, shared=system)  # shares the system message: repeats 1
    record.turns(compacted, 60, messages=2)
    other = record.ask(None, 2)
    record.turns(other, 8, messages=2)
    for _ in range(4):
        agent = record.ask(None, 2, "sub-agent")
        record.turns(agent, 50, role="sub-agent")
    agent = record.ask(None, 2, "sub-agent")
    record.turns(agent, REQUESTS - len(record.calls), role="sub-agent")
    return record.calls


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(case_study())


def test_its_unique_and_expanded_nodes(tree):
    leaves = candidates(tree)
    assert (len(tree.calls), len(leaves)) == (REQUESTS, PATHS)
    assert count_messages(tree, leaves, {TURN}) == MessageCounts(UNIQUE, EXPANDED)
    assert count_messages(tree, leaves, {TURN}).repeated == 369


def test_by_brute_force(tree):
    """The same counts from every path's ids, split into messages."""
    seen, expanded = set(), 0
    for leaf in candidates(tree):
        ids = tree.ids_to(leaf.node)
        edges = [*np.flatnonzero(ids == TURN)[1:].tolist(), len(ids)]
        expanded += len(edges)
        seen.update(ids[:edge].tobytes() for edge in edges)
    assert (len(seen), expanded) == (UNIQUE, EXPANDED)


def test_every_target_is_reached_once(tree):
    chosen = select_paths(tree, seed="s", limit=None)
    trained = [node for path in chosen for node in path.trains]
    assert len(chosen) == PATHS
    assert len(trained) == len(set(trained))
    assert sum(tree.nodes[node].length for node in trained) == sum(len(call.output) for call in tree.calls)


def test_without_turn_starts_a_turn_is_one_message():
    record = Recorder()
    first = record.ask(None, 3)
    record.turns(first, 2, messages=2)
    record.turns(first, 1)
    tree = Tree(record.calls)
    assert count_messages(tree, candidates(tree)) == MessageCounts(unique=8, expanded=10)
