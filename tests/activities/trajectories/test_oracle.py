"""Tree, selection, counts and packing equal brute force, on random executions (hypothesis)."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from activities.trajectories.artifact import decode_trajectory, encode_trajectory
from activities.trajectories.branches import steps
from activities.trajectories.growth import grow
from activities.trajectories.harvest import harvest
from activities.trajectories.packing import Piece, pack
from activities.trajectories.processing import summary
from activities.trajectories.tree import Tree
from infra.micro_steps import PackedMicroStep, Provenance, decode, encode
from tests.activities.trajectories import oracle
from tests.activities.trajectories.shapes import places_of, targets_of
from tests.activities.trajectories.strategies import executions
from workflows.messages.burst import Selection
from workflows.messages.group import PackGroup

PRIORITIES = st.permutations(Selection().role_priority).flatmap(
    lambda roles: st.integers(1, 4).map(lambda count: tuple(roles[:count]))
)
SELECTIONS = st.builds(Selection, role_priority=PRIORITIES, most_paths=st.sampled_from([None, 1, 2, 5]))


@given(executions(), PRIORITIES)
def test_every_call_keeps_its_exact_context(calls, priority):
    tree = Tree(calls, priority)
    expanded = oracle.expand(calls)
    for index, one in enumerate(expanded):
        assert tuple(tree.ids_to(tree.ends[index]).tolist()) == one.ids
        assert tuple(tree.ids_to(tree.prompt_ends[index]).tolist()) == one.prompt
    assert tree.tokens == len(oracle.unique_prefixes(expanded))
    found = {}
    for node in range(1, len(tree.nodes)):
        ids = tuple(tree.ids_to(node).tolist())
        source = tree.nodes[node].source
        for depth in range(tree.nodes[node].depth, tree.nodes[node].end if source >= 0 else 0):
            found[ids[: depth + 1]] = tree.calls[source].call
    assert found == {prefix: target.call for prefix, target in oracle.all_targets(expanded, priority).items()}


@given(executions())
def test_every_call_goes_on_from_the_longest_beginning_of_its_prompt(calls):
    expanded = oracle.expand(calls)
    for index, step in enumerate(steps(Tree(calls))):
        prompt = expanded[index].prompt
        fitting = [
            earlier
            for earlier in range(index)
            if expanded[earlier].call.output.size and prompt[: len(expanded[earlier].ids)] == expanded[earlier].ids
        ]
        longest = max((len(expanded[earlier].ids) for earlier in fitting), default=0)
        first = next((earlier for earlier in fitting if len(expanded[earlier].ids) == longest), None)
        assert step.parent == first
        known = oracle.unique_prefixes(expanded[:index])
        assert step.shared == sum(prefix in known for prefix in oracle.unique_prefixes([expanded[index]]))


@given(executions(), SELECTIONS, st.integers(0, 1000))
def test_selection_masks_and_counts(calls, selection, seed):
    expected = oracle.select(calls, f"e/{seed}", selection.most_paths, selection.role_priority)
    grown = grow("e", calls, seed=seed, selection=selection)
    stored = decode_trajectory(encode_trajectory(harvest(grown)))
    assert [(path.leaf, path.role) for path in stored.header.paths] == [(path.leaf, path.role) for path in expected]
    for index, path in enumerate(expected):
        assert tuple(stored.ids[places_of(stored, index)].tolist()) == path.ids
    assert targets_of(stored) == [
        (prefix, target.call, target.logprob, target.version)
        for path in expected
        for prefix, target in sorted(path.targets.items(), key=lambda item: len(item[0]))
    ]
    counts = summary(grown, stored)
    versions = [target.version for path in expected for target in path.targets.values()]
    candidates = oracle.candidate_paths(oracle.expand(calls), selection.role_priority)
    assert (counts.paths, counts.target_tokens) == (len(expected), len(versions))
    assert (counts.oldest_version, counts.newest_version) == (min(versions, default=None), max(versions, default=None))
    assert counts.candidates == len(candidates)
    assert counts.unique_tokens == len(oracle.unique_prefixes(candidates))
    assert counts.expanded_tokens == sum(len(path.ids) for path in candidates)


@given(
    st.lists(executions(8), min_size=1, max_size=3),
    SELECTIONS,
    st.sampled_from(["flat", "tree"]),
    st.integers(1, 60),
    st.integers(0, 1000),
)
def test_any_packing_trains_the_same(group, selection, layout, budget, seed):
    """Each target once, with its exact context, weight, log-prob and version, whatever the layout and the budget."""
    expected: Counter[tuple] = Counter()
    pieces = []
    for number, calls in enumerate(group):
        name, advantage = f"e{number}", 1.5 - number
        chosen = oracle.select(calls, f"{name}/{seed}", selection.most_paths, selection.role_priority)
        total = sum(len(path.targets) for path in chosen)
        for path in chosen:
            for prefix, target in path.targets.items():
                weight = np.float32(advantage / total)
                expected[name, prefix, target.call, np.float32(target.logprob), target.version, weight] += 1
        if total:
            grown = grow(name, calls, seed=seed, selection=selection)
            pieces.append(Piece(harvest(grown), advantage, total, provenance(name)))
    steps = [decode(encode(step)) for step in pack(pieces, request(layout, budget))]
    found: Counter[tuple] = Counter()
    for step in steps:
        found.update(trained(step))
        longest = max(depth(step, path.segment) for path in step.header.paths)
        assert step.tokens <= max(budget, longest)
    assert found == expected
    assert all(step.target_tokens > 0 for step in steps)


def provenance(name: str) -> Provenance:
    return Provenance(
        execution=name,
        task="t",
        harness="h",
        outcome="scored",
        reward=1.0,
        oldest_version=1,
        newest_version=1,
        trajectory_sha256="",
    )


def request(layout, budget: int) -> PackGroup:
    return PackGroup(
        run="r",
        batch="r/batch/b/0",
        burst="b",
        group=0,
        first_index=0,
        token_budget=budget,
        temperature=1.0,
        layout=layout,
    )


def trained(step: PackedMicroStep) -> list[tuple]:
    """(execution, exact prefix, call, log-prob, version, weight) of every target."""
    found = []
    for path in step.header.paths:
        places = [
            place
            for segment in step.ancestors(path.segment)
            for place in range(int(step.segment_offsets[segment]), int(step.segment_offsets[segment + 1]))
        ]
        for span in path.spans:
            for place in range(span.start, span.end):
                prefix = tuple(step.ids[places[: places.index(place) + 1]].tolist())
                values = (step.behaviour_logprobs[place], int(step.versions[place]), step.weights[place])
                found.append((path.execution, prefix, span.call, *values))
    return found


def depth(step: PackedMicroStep, segment: int) -> int:
    return int(step.positions[step.segment_offsets[segment + 1] - 1]) + 1
