"""Cases 27, 28, 30 (by role), 32 and 34: targets trained once, whatever the shape of the calls."""

import pytest

from activities.trajectories.artifact import decode_trajectory, encode_trajectory
from activities.trajectories.branches import Reason, branch_of, steps
from activities.trajectories.roles import rank
from activities.trajectories.selection import candidates, select_paths
from activities.trajectories.tree import Tree
from harness_adapters.protocol import CallRole
from tests.activities.trajectories.shapes import call, ids_of, leaf_calls, places_of, targets_of, trajectory
from workflows.messages.burst import Selection
from workflows.messages.errors import AuditFailure


def parents(tree: Tree) -> list[int | None]:
    return [step.parent for step in steps(tree)]


def reasons(tree: Tree) -> list[Reason | None]:
    return [step.reason for step in steps(tree)]


def test_turns_of_one_conversation_are_one_path():
    tree = Tree([call(0, [1, 2], [3]), call(1, [1, 2, 3, 9], [4, 5]), call(2, [1, 2, 3, 9, 4, 5, 9], [6])])
    assert leaf_calls(tree) == ["c2"]
    assert parents(tree) == [None, 0, 1]
    assert reasons(tree) == [Reason.START, None, None]
    stored = trajectory(tree)
    assert stored.ids.tolist() == [1, 2, 3, 9, 4, 5, 9, 6]
    assert stored.targets().tolist() == [False, False, True, False, True, True, False, True]
    assert stored.segment_parents.tolist() == [-1]


def test_a_prompt_is_what_its_parent_shares_and_its_own_ids():
    tree = Tree(
        [
            call(0, [1, 2], [3, 4]),
            call(1, [9], [5], parent="c0", shared=4),
            call(2, [8], [6], parent="c0", shared=3),
            call(3, [], [7], parent="c0", shared=1),
        ]
    )
    assert [ids_of(tree, index) for index in range(4)] == [[1, 2, 3, 4], [1, 2, 3, 4, 9, 5], [1, 2, 3, 8, 6], [1, 7]]
    assert tree.tokens == 4 + 2 + 2 + 1
    assert tree.departs == [0, 4, 3, 1]


@pytest.mark.parametrize("more", [{"parent": "c0", "shared": 5}, {"parent": "nobody", "shared": 1}])
def test_a_parent_that_lacks_what_is_shared_is_refused(more):
    with pytest.raises(AuditFailure, match="c1 shares"):
        Tree([call(0, [1, 2], [3, 4]), call(1, [9], [5], **more)])


def test_case_27_the_longest_branch_matches_and_targets_are_per_id_prefix():
    tree = Tree(
        [
            call(0, [1, 2], [3, 4]),
            call(1, [1, 2, 3, 4, 5], [6]),
            call(2, [1, 2], [3, 4, 5, 6, 7], version=1),
            call(3, [1, 2, 3, 4, 5, 6, 7, 8], [9], version=1),
        ]
    )
    assert parents(tree) == [None, 0, None, 2]
    assert reasons(tree) == [Reason.START, None, Reason.SAMPLED_AGAIN, None]
    stored = trajectory(tree)
    found = targets_of(stored)
    assert [prefix[-1] for prefix, *_ in found] == [3, 4, 5, 6, 7, 9]
    assert [source for _, source, *_ in found] == ["c0", "c0", "c2", "c1", "c2", "c3"]
    assert [logprob for _, _, logprob, _ in found] == pytest.approx([-1.0, -1.1, -3.2, -2.0, -3.4, -4.0])
    assert [version for *_, version in found] == [0, 0, 1, 0, 1, 1]


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
    found = [(tree.calls[leaf.call].call, leaf.role, leaf.targets) for leaf in candidates(tree)]
    assert found == [("c3", "sub-agent", 1), ("c4", "sub-agent", 2), ("c5", "main", 3)]
    assert reasons(tree) == [Reason.START, Reason.SUB_AGENT, None, Reason.SUB_AGENT, None, None]
    for seed in range(20):
        chosen = select_paths(tree, seed=str(seed), limit=2)
        assert tree.calls[chosen[0].leaf.call].call == "c5"
        assert chosen[1].leaf.role == "sub-agent"


def test_case_28_twins_with_the_same_first_request_attach_by_their_output():
    first, twin = call(0, [1, 2], [7], "sub-agent"), call(1, [1, 2], [8], "sub-agent")
    later = [call(2, [1, 2, 8, 5], [9], "sub-agent"), call(3, [1, 2, 7, 5], [9], "sub-agent")]
    tree = Tree([first, twin, *later])
    assert parents(tree) == [None, None, 1, 0]
    assert leaf_calls(tree) == ["c2", "c3"]
    assert tree.prompt_ends[0] == tree.prompt_ends[1]
    stored = trajectory(tree, limit=None)
    assert stored.segment_parents.tolist() == [-1, 0, 0]
    assert sorted(prefix for prefix, *_ in targets_of(stored)) == [
        (1, 2, 7),
        (1, 2, 7, 5, 9),
        (1, 2, 8),
        (1, 2, 8, 5, 9),
    ]


def test_the_very_same_answer_twice_is_trained_once():
    tree = Tree([call(0, [1, 2], [3, 4]), call(1, [1, 2], [3, 4])])
    assert leaf_calls(tree) == ["c0"]
    assert [source for _, source, *_ in targets_of(trajectory(tree))] == ["c0", "c0"]


def test_siblings_share_the_beginning_of_their_answers():
    tree = Tree([call(0, [1], [3, 4, 5]), call(1, [1], [3, 4, 6])])
    found = [prefix for prefix, *_ in targets_of(trajectory(tree))]
    assert sorted(found) == [(1, 3), (1, 3, 4), (1, 3, 4, 5), (1, 3, 4, 6)]


def test_what_one_call_said_is_a_target_also_where_another_was_told_it():
    """The declared rule: (exact id prefix, position). Token 4 is context of c0 and c2, and c1 generated it."""
    tree = Tree([call(0, [1, 2, 4], [5]), call(1, [1, 2], [4, 6]), call(2, [1, 2, 4, 5, 7], [8])])
    assert sorted((prefix, source) for prefix, source, *_ in targets_of(trajectory(tree, limit=None))) == [
        ((1, 2, 4), "c1"),
        ((1, 2, 4, 5), "c0"),
        ((1, 2, 4, 5, 7, 8), "c2"),
        ((1, 2, 4, 6), "c1"),
    ]


def case_30_calls():
    calls = [call(0, [2], [5])]
    for turn in range(1, 20):
        calls.append(call(turn, [9], [5], parent=f"c{turn - 1}", shared=1 + 2 * turn - 1))
    calls += [call(20 + index, [1, index + 10], [2], "side") for index in range(7)]
    calls += [call(30 + index, [3, index], [5], "sub-agent") for index in range(3)]
    calls += [
        call(40 + index, [4], [5, 6], "main-summary", parent=f"c{9 + 5 * index}", shared=20 + 10 * index)
        for index in range(2)
    ]
    return calls


def test_case_30_side_calls_are_recorded_and_never_trained():
    tree = Tree(case_30_calls())
    assert reasons(tree).count(Reason.SIDE) == 7
    for seed in range(10):
        stored = trajectory(tree, seed=str(seed))
        assert [path.role for path in stored.header.paths] == [
            "main",
            "sub-agent",
            "sub-agent",
            "sub-agent",
            "main-summary",
        ]
        assert [path.branch for path in stored.header.paths] == ["start", *["sub-agent"] * 3, "summary"]
        assert stored.header.paths[0].target_tokens == 20
        assert stored.header.paths[4].target_tokens == 2


def test_role_priority_and_most_paths_are_settings():
    tree = Tree(case_30_calls())
    order = Selection(role_priority=("main", "main-summary", "sub-agent"), most_paths=3)
    stored = trajectory(tree, limit=order.most_paths, priority=order.role_priority)
    assert [path.role for path in stored.header.paths] == ["main", "main-summary", "main-summary"]
    only_main = Tree(case_30_calls(), ("main",))
    assert [path.role for path in trajectory(only_main, priority=("main",)).header.paths] == ["main"]


def test_a_side_call_with_the_same_prompt_gives_no_target():
    tree = Tree([call(0, [1], [3, 4], "side"), call(1, [1], [3, 5])])
    assert [(prefix, source) for prefix, source, *_ in targets_of(trajectory(tree))] == [
        ((1, 3), "c1"),
        ((1, 3, 5), "c1"),
    ]


def test_a_side_call_on_top_of_the_conversation_does_not_hide_it():
    tree = Tree([call(0, [1], [3]), call(1, [1, 3, 7], [4], "side")])
    assert leaf_calls(tree) == ["c0"]


def test_a_draw_is_proportional_to_unused_targets_and_repeatable():
    tree = Tree([call(0, [1], [2] * 30), call(1, [5], [2] * 10)])
    first = [tree.calls[select_paths(tree, seed=str(seed), limit=1)[0].leaf.call].call for seed in range(400)]
    assert 270 < first.count("c0") < 330
    again = [tree.calls[select_paths(tree, seed=str(seed), limit=1)[0].leaf.call].call for seed in range(400)]
    assert first == again


def test_every_role_of_the_recorder_is_known():
    assert [rank(role) for role in CallRole] == [0, 1, 2, 3, None]
    assert rank("nobody knows") is None
    assert Selection().role_priority == tuple(role for role in CallRole if role != CallRole.SIDE)


def test_branches_say_why():
    system, task = [1, 1, 1], [2, 2]
    tree = Tree(
        [
            call(0, [*system, *task], [10]),
            call(1, [*system, *task, 10, 5], [11]),
            call(2, [*system, *task, 10, 5], [12]),  # the same request again
            call(3, [*system, *task, 10, 6], [13]),  # another tool result
            call(4, [*system, *task, 10, 5, 11, 99], [50], "main-summary"),
            call(5, [*system, 3, 50], [14]),  # goes on from the summary
            call(6, [*system, 4], [15], fork_reason="template"),
            call(7, [8, 8], [16], "sub-agent"),
            call(8, [7], [17]),
            call(9, [7, 17, 5], [], state="failed"),
            call(10, [7, 17, 5], [18]),
            call(11, [*system, 6], [19], fork_reason="tools"),
        ]
    )
    assert reasons(tree) == [
        Reason.START,
        None,
        Reason.SAMPLED_AGAIN,
        Reason.EDITED,
        Reason.SUMMARY,
        Reason.COMPACTION,
        Reason.TEMPLATE,
        Reason.SUB_AGENT,
        Reason.UNRELATED,
        None,
        Reason.RETRIED,
        Reason.TOOLS,
    ]
    found = steps(tree)
    assert [step.shared for step in found[3:7]] == [6, 8, 3, 3]
    assert branch_of(10, found) is Reason.RETRIED
    assert branch_of(1, found) is Reason.START


def test_nothing_to_train():
    stored = trajectory(Tree([]))
    assert (stored.tokens, stored.header.paths) == (0, ())
    back = decode_trajectory(encode_trajectory(stored))
    assert (back.tokens, back.header) == (0, stored.header)


def test_paths_of_a_stored_tree_are_whole():
    tree = Tree([call(0, [1], [3]), call(1, [1, 3, 5], [6]), call(2, [1, 3, 7], [8]), call(3, [1, 3, 7, 8, 2], [9])])
    stored = decode_trajectory(encode_trajectory(trajectory(tree)))
    found = {stored.header.paths[k].leaf: stored.ids[places_of(stored, k)].tolist() for k in range(2)}
    assert found == {"c1": [1, 3, 5, 6], "c3": [1, 3, 7, 8, 2, 9]}
