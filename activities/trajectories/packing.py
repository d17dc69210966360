"""An admitted group of a batch becomes micro-steps: whole paths, packed up to a token budget.

A micro-step sums ``A_i / |T_i|`` over its targets, so the gradient of a group does not depend on how it is cut. A
path longer than the budget is a micro-step of its own. Packing is a pure function of the admitted group and the
stored trajectories: a retry writes the same bytes.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Engine
from temporalio import activity

from activities.trajectories.artifact import TrajectoryPath, decode_trajectory
from infra.micro_steps import MicroStepHeader, PackedMicroStep, PackedPath, TargetSpan, encode
from infra.objects import ObjectStore
from infra.records.executions import get_execution
from infra.records.groups import GroupMember, get_group, keep_micro_steps
from workflows.messages import ids
from workflows.messages.errors import Fenced
from workflows.messages.group import MicroStep, PackedGroup, PackGroup


@dataclass(frozen=True, eq=False)
class WeightedPath:
    """A path with its execution's advantage and |T_i|."""

    path: TrajectoryPath
    advantage: float
    target_total: int

    @property
    def tokens(self) -> int:
        return len(self.path.ids)


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
        paths = [] if row.no_signal else [path for member in row.members for path in self._paths(member)]
        packed: list[MicroStep] = []
        for index, bin_ in enumerate(pack(paths, request.token_budget), start=request.first_index):
            step = assemble(request, group_id, index, bin_)
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

    def _paths(self, member: GroupMember) -> list[WeightedPath]:
        if member.left_out is not None or member.advantage is None or member.target_tokens == 0:
            return []
        with self._engine.connect() as connection:
            row = get_execution(connection, member.execution)
        if row is None or row.processed is None:
            raise Fenced(f"{member.execution} has no trajectory any more")
        stored = decode_trajectory(self._objects.get(row.processed.payload))
        return [WeightedPath(path, member.advantage, member.target_tokens) for path in stored]


def pack(paths: Sequence[WeightedPath], token_budget: int) -> list[list[WeightedPath]]:
    """First fit, longest first; equal lengths keep their order."""
    bins: list[list[WeightedPath]] = []
    room: list[int] = []
    for path in sorted(paths, key=lambda path: -path.tokens):
        place = next((index for index, left in enumerate(room) if path.tokens <= left), None)
        if place is None:
            bins.append([])
            room.append(token_budget)
            place = len(bins) - 1
        bins[place].append(path)
        room[place] -= path.tokens
    return bins


def assemble(request: PackGroup, group_id: str, index: int, paths: Sequence[WeightedPath]) -> PackedMicroStep:
    """The micro-step of these paths, back to back."""
    lengths = [path.tokens for path in paths]
    offsets = np.cumsum([0, *lengths])
    targets = np.concatenate([path.path.targets for path in paths])
    weight = np.concatenate([np.full(path.tokens, path.advantage / path.target_total, np.float32) for path in paths])
    header = MicroStepHeader(
        batch=request.batch,
        index=index,
        group=group_id,
        temperature=request.temperature,
        paths=tuple(
            _header(path, segment, int(start))
            for segment, (path, start) in enumerate(zip(paths, offsets[:-1], strict=True))
        ),
    )
    return PackedMicroStep(
        header=header,
        ids=np.concatenate([path.path.ids for path in paths]),
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        segment_offsets=offsets.astype(np.int32),
        segment_parents=np.full(len(paths), -1, np.int32),
        targets=targets,
        weights=np.where(targets, weight, np.float32(0)),
        behaviour_logprobs=np.concatenate([path.path.logprobs for path in paths]),
        versions=np.concatenate([path.path.versions for path in paths]),
    )


def _header(path: WeightedPath, segment: int, start: int) -> PackedPath:
    spans = tuple(
        TargetSpan(call=span.call, offset=span.offset, start=span.start + start, end=span.end + start)
        for span in path.path.header.spans
    )
    return PackedPath(
        execution=path.path.execution,
        leaf=path.path.header.leaf,
        role=path.path.header.role,
        segment=segment,
        advantage=path.advantage,
        target_total=path.target_total,
        spans=spans,
    )
