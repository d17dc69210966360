"""The chosen paths of a tree as they are stored: nodes become segments, targets get their log-probs and versions."""

import numpy as np

from activities.trajectories.artifact import PathHeader, TrajectoryHeader, TrajectoryTree
from activities.trajectories.branches import branch_of, steps
from activities.trajectories.growth import GrownTree
from activities.trajectories.segments import arrange
from activities.trajectories.tree import Tree
from infra.micro_steps import TargetSpan


def harvest(grown: GrownTree) -> TrajectoryTree:
    """The trajectory of an execution. Empty if nothing was chosen."""
    tree, chosen = grown.tree, grown.chosen
    arranged = arrange([path.nodes for path in chosen])
    order = [node for segment in arranged for node in segment.pieces]
    lengths = [sum(tree.nodes[node].length for node in segment.pieces) for segment in arranged]
    starts = dict(zip(order, np.cumsum([0, *(tree.nodes[node].length for node in order)]).tolist(), strict=False))
    segment_of = {node: index for index, segment in enumerate(arranged) for node in segment.pieces}
    ids = [np.zeros(0, np.int32), *(tree.ids_of(node) for node in order)]
    logprobs = np.zeros(sum(lengths), dtype=np.float32)
    versions = np.full(sum(lengths), -1, dtype=np.int64)
    found = steps(tree)
    sampled_at: dict[int, np.ndarray] = {}
    headers: list[PathHeader] = []
    for path in chosen:
        spans: list[TargetSpan] = []
        for node in path.trains:
            source, offset, length = tree.nodes[node].source, tree.offset_of(node), tree.nodes[node].length
            if source not in sampled_at:
                sampled_at[source] = tree.calls[source].versions
            places, outputs = slice(starts[node], starts[node] + length), slice(offset, offset + length)
            logprobs[places] = tree.calls[source].logprobs[outputs]
            versions[places] = sampled_at[source][outputs]
            span = TargetSpan(call=tree.calls[source].call, offset=offset, start=places.start, end=places.stop)
            if spans and _follows(span, spans[-1], tree, segment_of, node):
                span = spans.pop().model_copy(update={"end": span.end})
            spans.append(span)
        headers.append(
            PathHeader(
                leaf=tree.calls[path.leaf.call].call,
                role=path.leaf.role,
                branch=branch_of(path.leaf.call, found),
                segment=segment_of[path.nodes[-1]],
                spans=tuple(spans),
            )
        )
    return TrajectoryTree(
        header=TrajectoryHeader(
            execution=grown.execution, seed=grown.seed, selection=grown.selection, paths=tuple(headers)
        ),
        ids=np.concatenate(ids),
        segment_offsets=np.cumsum([0, *lengths]).astype(np.int32),
        segment_parents=np.array([segment.parent for segment in arranged], dtype=np.int32),
        logprobs=logprobs,
        versions=versions,
    )


def _follows(span: TargetSpan, last: TargetSpan, tree: Tree, segment_of: dict[int, int], node: int) -> bool:
    """Whether a span only goes on with the last one: same call, next token, same segment."""
    same_call = span.call == last.call and span.offset == last.offset + last.end - last.start
    same_segment = segment_of[node] == segment_of.get(tree.nodes[node].parent)
    return same_call and same_segment and span.start == last.end
