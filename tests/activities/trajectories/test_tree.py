"""Cases 27, 28, 30 (by role), 32 and 34: targets trained once, whatever the shape of the calls."""

import random

import numpy as np
import pytest

from activities.trajectories.artifact import decode_trajectory, encode_trajectory
from activities.trajectories.roles import rank
from activities.trajectories.selection import select_paths
from activities.trajectories.tree import Call, Tree
from harness_adapters.protocol import CallRole


def call(sequence: int, prompt: list[int], output: list[int], role: str = "main", version: int = 0) -> Call:
    return Call(
        call=f"c{sequence}",
        sequence=sequence,
        role=role,
        prompt=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        logprobs=np.array([-(sequence + 1) - place / 10 for place in range(len(output))], np.float32),
        versions=np.full(len(output), version, np.int64),
    )


def trained(tree: Tree, **options) -> list[tuple[tuple[int, ...], str]]:
    """(exact ids up to and with the target, call it comes from) of every target of the chosen paths."""
    found = []
    for one in select_paths(tree.paths(), seed="s", **options):
        for place in np.flatnonzero(one.targets):
            found.append((tuple(one.path.ids[: place + 1].tolist()), tree.calls[one.path.source[place]].call))
    return found


def test_turns_of_one_conversation_are_one_path():
    tree = Tree([call(0, [1, 2], [3]), call(1, [1, 2, 3, 9], [4, 5]), call(2, [1, 2, 3, 9, 4, 5, 9], [6])])
    assert tree.leaves == [2]
    assert tree.parents == [None, 0, 1]
    (path,) = tree.paths()
    assert path.ids.tolist() == [1, 2, 3, 9, 4, 5, 9, 6]
    assert path.targets.tolist() == [False, False, True, False, True, True, False, True]


def test_case_27_the_longest_branch_matches_and_targets_are_per_id_prefix():
    tree = Tree(
        [
            call(0, [1, 2], [3, 4]),
            call(1, [1, 2, 3, 4, 5], [6]),
            call(2, [1, 2], [3, 4, 5, 6, 7], version=1),
            call(3, [1, 2, 3, 4, 5, 6, 7, 8], [9], version=1),
        ]
    )
    assert tree.parents == [None, 0, None, 2]
    (path,) = tree.paths()
    assert [int(one) for one in path.ids[path.targets]] == [3, 4, 5, 6, 7, 9]
    assert [tree.calls[source].call for source in path.source[path.targets]] == ["c0", "c0", "c2", "c1", "c2", "c3"]
    assert path.logprobs[path.targets].tolist() == pytest.approx([-1.0, -1.1, -3.2, -2.0, -3.4, -4.0])
    assert path.versions[path.targets].tolist() == [0, 0, 1, 0, 1, 1]


def test_case_28_sub_agents_interleaved_with_their_parent():
    a, b, c = [1, 1], [2, 2], [3, 3]
    tree = Tree(
        [
            call(0, a, [10]),
            call(1, b, [20], "sub-agent"),
            call(2, [*a, 10, 5], [11]),
            call(3, c, [30], "sub-agent"),
            call(4, [*b, 20, 5], [21], "sub-agent"),
            call(5, [*a, 10, 5, 11, 5], [12]),
        ]
    )
    paths = tree.paths()
    assert [(path.leaf.call, path.leaf.role, int(path.targets.sum())) for path in paths] == [
        ("c3", "sub-agent", 1),
        ("c4", "sub-agent", 2),
        ("c5", "main", 3),
    ]
    for seed in range(20):
        chosen = select_paths(paths, seed=str(seed), limit=2)
        assert chosen[0].path.leaf.call == "c5"
        assert chosen[1].path.leaf.role == "sub-agent"


def test_twins_attach_by_their_output():
    first, twin = call(0, [1, 2], [7]), call(1, [1, 2], [8])
    tree = Tree([first, twin, call(2, [1, 2, 8, 5], [9]), call(3, [1, 2, 7, 5], [9])])
    assert tree.parents == [None, None, 1, 0]
    assert sorted(tree.leaves) == [2, 3]


def test_the_very_same_answer_twice_is_trained_once():
    tree = Tree([call(0, [1, 2], [3, 4]), call(1, [1, 2], [3, 4])])
    assert tree.leaves == [0]
    assert [source for _, source in trained(tree)] == ["c0", "c0"]


def test_siblings_share_the_beginning_of_their_answers():
    tree = Tree([call(0, [1], [3, 4, 5]), call(1, [1], [3, 4, 6])])
    found = trained(tree)
    assert len(found) == len({prefix for prefix, _ in found}) == 4
    assert {prefix for prefix, _ in found} == {(1, 3), (1, 3, 4), (1, 3, 4, 5), (1, 3, 4, 6)}


def test_a_lower_role_gets_its_turn_and_side_calls_never():
    calls = [call(index, [1, index + 10], [2], "side") for index in range(6)]
    calls += [call(6, [2], [5, 5, 5])]
    calls += [call(7 + index, [3, index], [5], "sub-agent") for index in range(3)]
    calls += [call(10 + index, [4, index], [5, 6], "main-summary") for index in range(2)]
    chosen = select_paths(Tree(calls).paths(), seed="x")
    roles = [one.path.leaf.role for one in chosen]
    assert roles == ["main", "sub-agent", "sub-agent", "sub-agent", "main-summary"]


def test_a_draw_is_proportional_to_unused_targets_and_repeatable():
    tree = Tree([call(0, [1], [2] * 30), call(1, [5], [2] * 10)])
    paths = tree.paths()
    first = [select_paths(paths, seed=str(seed), limit=1)[0].path.leaf.call for seed in range(400)]
    assert 250 < first.count("c0") < 350  # 300 expected
    again = [select_paths(paths, seed=str(seed), limit=1)[0].path.leaf.call for seed in range(400)]
    assert first == again


def test_every_role_of_the_recorder_is_known():
    assert [rank(role) for role in CallRole] == [0, 1, 2, 3, None]
    assert rank("nobody knows") is None


@pytest.mark.parametrize("seed", range(30))
def test_any_shape_trains_each_target_once_with_its_first_call(seed):
    """Against a brute force over all calls: prefix -> the call that generated it first."""
    draw = random.Random(seed)
    calls: list[Call] = []
    for sequence in range(draw.randint(1, 12)):
        start = [*draw.choice(calls).ids.tolist()] if calls and draw.random() < 0.8 else [1]
        start = start[: draw.randint(1, len(start))]
        prompt = start + [draw.randint(1, 2) for _ in range(draw.randint(0, 2))]
        calls.append(call(sequence, prompt, [draw.randint(1, 2) for _ in range(draw.randint(1, 4))]))
    expected: dict[tuple[int, ...], str] = {}
    for one in calls:
        ids = one.ids.tolist()
        for place in range(len(one.prompt), len(ids)):
            expected.setdefault(tuple(ids[: place + 1]), one.call)
    tree = Tree(calls)
    found = trained(tree, limit=100)
    assert len(found) == len(dict(found))
    assert dict(found) == expected
    blob = encode_trajectory("e", select_paths(tree.paths(), seed="s", limit=100), tree.calls)
    by_id = {one.call: one for one in calls}
    total = 0
    for path in decode_trajectory(blob):
        total += path.target_tokens
        covered = np.zeros(len(path.ids), np.int64)
        for span in path.header.spans:
            source = by_id[span.call]
            stop = span.offset + span.end - span.start
            assert path.ids[span.start : span.end].tolist() == source.output[span.offset : stop].tolist()
            assert path.logprobs[span.start : span.end].tolist() == source.logprobs[span.offset : stop].tolist()
            covered[span.start : span.end] += 1
        assert covered.astype(bool).tolist() == path.targets.tolist()
        assert covered.max() == 1
        assert bool(path.targets[-1])
    assert total == len(expected)


def test_nothing_to_train():
    tree = Tree([])
    assert tree.paths() == []
    assert decode_trajectory(encode_trajectory("e", [], [])) == []
