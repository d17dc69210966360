"""An admitted group of a batch becomes micro-steps: paths, or trees of them, packed up to a token budget.

A micro-step sums ``A_i / |T_i|`` over its targets, so the gradient of a group does not depend on how it is cut or laid
out. Packing is a pure function of the admitted group and the stored trajectories: a retry writes the same bytes.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import Engine, select
from temporalio import activity

from activities.trajectories.artifact import PathHeader, TrajectoryTree, decode_trajectory
from activities.trajectories.cutting import cut, share_out
from infra.micro_steps import MicroStepHeader, PackedMicroStep, PackedPath, Provenance, encode
from infra.objects import ObjectStore
from infra.records.executions import get_execution
from infra.records.groups import GroupMember, get_group, keep_micro_steps
from infra.records.schema import executions
from workflows.messages import ids
from workflows.messages.errors import Fenced
from workflows.messages.group import MicroStep, PackedGroup, PackGroup


@dataclass(frozen=True, eq=False)
class Piece:
    """An execution's trajectory, or a part of it, with its advantage, its |T_i| and where it comes from."""

    tree: TrajectoryTree
    advantage: float
    target_total: int
    provenance: Provenance


class PackingActivities:
    """Runs on the control queue."""

    def __init__(self, engine: Engine, objects: ObjectStore) -> None:
        self._engine, self._objects = engine, objects

    @activity.defn(name="pack_group")
    async def pack_group(self, request: PackGroup) -> PackedGroup:
        """Write a group's micro-steps and their rows. A group without signal has none.

        Raises Fenced for a group that was never admitted, ChecksumMismatch if a trajectory is not what was stored.
        """
        return await asyncio.to_thread(self._pack, request)

    def _pack(self, request: PackGroup) -> PackedGroup:
        group_id = ids.group_id(request.burst, request.group)
        with self._engine.connect() as connection:
            row = get_group(connection, group_id)
        if row is None:
            raise Fenced(f"group {group_id} was never admitted")
        members = [] if row.no_signal else [member for member in row.members if _is_trained(member)]
        packed: list[MicroStep] = []
        for step in pack([self._trajectory(member) for member in members], request):
            index = step.header.index
            uri = f"micro-steps/{request.batch}/{index}.safetensors"
            packed.append(
                MicroStep(
                    batch=request.batch,
                    index=index,
                    group=group_id,
                    payload=self._objects.put(uri, encode(step)),
                    tokens=step.tokens,
                    target_tokens=step.target_tokens,
                )
            )
        keep_micro_steps(self._engine, request.batch, group_id, tuple(packed))
        return PackedGroup(group=group_id, micro_steps=tuple(packed))

    def _trajectory(self, member: GroupMember) -> Piece:
        with self._engine.connect() as connection:
            row = get_execution(connection, member.execution)
            query = select(executions.c.task, executions.c.harness).where(executions.c.execution == member.execution)
            made_by = connection.execute(query).one_or_none()
        if row is None or row.processed is None or made_by is None or member.advantage is None:
            raise Fenced(f"{member.execution} has no trajectory any more")
        provenance = Provenance(
            execution=member.execution,
            task=made_by.task.rsplit("/", 1)[-1],
            harness=made_by.harness,
            outcome=member.outcome,
            reward=member.reward,
            evaluator=row.evaluator or "",
            oldest_version=row.processed.processed.oldest_version,
            newest_version=row.processed.processed.newest_version,
            trajectory_sha256=row.processed.payload.sha256,
        )
        tree = decode_trajectory(self._objects.get(row.processed.payload))
        return Piece(tree, member.advantage, member.target_tokens, provenance)


def _is_trained(member: GroupMember) -> bool:
    return member.left_out is None and member.advantage is not None and member.target_tokens > 0


def pack(trajectories: Sequence[Piece], request: PackGroup) -> list[PackedMicroStep]:
    """The micro-steps of a group's trained trajectories, the longest first."""
    pieces: list[Piece] = []
    for whole in trajectories:
        if request.layout == "flat":
            parts = [(path,) for path in range(len(whole.tree.header.paths))]
        else:
            parts = cut(whole.tree, request.token_budget)
        pieces += [replace(whole, tree=whole.tree.part(part)) for part in parts]
    shares = share_out([piece.tree.tokens for piece in pieces], request.token_budget)
    group_id = ids.group_id(request.burst, request.group)
    return [
        assemble(request, group_id, index, [pieces[place] for place in share])
        for index, share in enumerate(shares, start=request.first_index)
    ]


def assemble(request: PackGroup, group_id: str, index: int, pieces: Sequence[Piece]) -> PackedMicroStep:
    """The micro-step of these pieces, one after the other."""
    trees = [piece.tree for piece in pieces]
    starts = np.cumsum([0, *(tree.tokens for tree in trees)]).tolist()
    firsts = np.cumsum([0, *(len(tree.segment_parents) for tree in trees)]).tolist()
    offsets = [tree.segment_offsets[1:] + start for tree, start in zip(trees, starts[:-1], strict=True)]
    parents = [
        np.where(tree.segment_parents < 0, -1, tree.segment_parents + first)
        for tree, first in zip(trees, firsts[:-1], strict=True)
    ]
    targets = [tree.targets() for tree in trees]
    header = MicroStepHeader(
        batch=request.batch,
        index=index,
        group=group_id,
        layout=request.layout,
        temperature=request.temperature,
        paths=tuple(
            _path(piece, path, start, first)
            for piece, start, first in zip(pieces, starts[:-1], firsts[:-1], strict=True)
            for path in piece.tree.header.paths
        ),
        executions=tuple({piece.provenance.execution: piece.provenance for piece in pieces}.values()),
    )
    return PackedMicroStep(
        header=header,
        ids=np.concatenate([tree.ids for tree in trees]),
        positions=np.concatenate([depths(tree) for tree in trees]),
        segment_offsets=np.concatenate([np.zeros(1, np.int32), *offsets]).astype(np.int32),
        segment_parents=np.concatenate(parents).astype(np.int32),
        targets=np.concatenate(targets),
        weights=np.concatenate(
            [
                np.where(mask, np.float32(piece.advantage / piece.target_total), np.float32(0))
                for piece, mask in zip(pieces, targets, strict=True)
            ]
        ),
        behaviour_logprobs=np.concatenate([tree.logprobs for tree in trees]),
        versions=np.concatenate([tree.versions for tree in trees]),
    )


def depths(tree: TrajectoryTree) -> np.ndarray:
    """How deep below its root each place is: int32 [s]."""
    lengths = np.diff(tree.segment_offsets)
    above = np.zeros(len(lengths), dtype=np.int64)
    for segment, parent in enumerate(tree.segment_parents.tolist()):
        above[segment] = 0 if parent < 0 else above[parent] + lengths[parent]
    return (np.arange(tree.tokens) + np.repeat(above - tree.segment_offsets[:-1], lengths)).astype(np.int32)


def _path(piece: Piece, path: PathHeader, start: int, first_segment: int) -> PackedPath:
    spans = tuple(span.model_copy(update={"start": span.start + start, "end": span.end + start}) for span in path.spans)
    return PackedPath(
        execution=piece.tree.header.execution,
        leaf=path.leaf,
        role=path.role,
        branch=path.branch,
        segment=path.segment + first_segment,
        advantage=piece.advantage,
        target_total=piece.target_total,
        spans=spans,
    )
