"""What a burst's updates trained, target by target, from what its batches recorded as counted."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from infra.checkpoints import CheckpointStore
from infra.checkpoints.agreement import record_damage
from infra.micro_steps import decode
from infra.objects import ObjectStore
from infra.records.groups import GroupMember
from infra.records.schema import batches, groups, micro_steps
from workers.supervisor import LocalStack
from workflows.messages.artifacts import ArtifactRef


@dataclass(frozen=True)
class Trained:
    """`targets` counts (execution, call, place); `owed` are the targets of each valid execution with a signal."""

    targets: Counter[tuple[str, str, int]]
    owed: dict[str, int]

    @property
    def executions(self) -> Counter[str]:
        """Targets trained of each execution."""
        return Counter(execution for execution, _, _ in self.targets.elements())


def trained(stack: LocalStack, burst: str) -> Trained:
    objects = ObjectStore(stack.manifest.object_store_url)
    targets, owed = Counter[tuple[str, str, int]](), dict[str, int]()
    with stack.records.connect() as connection:
        done = connection.execute(select(batches).where(batches.c.burst == burst)).all()
        for batch in done:
            assert batch.committed_at is not None, batch.batch
            rows = connection.execute(select(micro_steps).where(micro_steps.c.batch == batch.batch)).all()
            stored = {row.micro_step: row for row in rows}
            for entry in batch.accepted:
                row = stored[entry["index"]]
                blob = objects.read(row.uri)
                objects.get(ArtifactRef(uri=row.uri, sha256=row.sha256, bytes=len(blob)))
                for path in decode(blob).header.paths:
                    for span in path.spans:
                        places = range(span.offset, span.offset + span.end - span.start)
                        targets.update((path.execution, span.call, place) for place in places)
            for group in connection.execute(select(groups).where(groups.c.batch == batch.batch)).all():
                for member in map(GroupMember.model_validate, group.members):
                    if group.no_signal is None and member.left_out is None and member.target_tokens:
                        owed[member.execution] = member.target_tokens
    return Trained(targets, owed)


def checkpoints_agree(stack: LocalStack) -> None:
    """Every checkpoint that is kept is whole and says of its batch what the batch recorded."""
    for checkpoint in CheckpointStore(Path(stack.manifest.checkpoints)).list():
        assert (checkpoint.damage(), record_damage(stack.records, checkpoint)) == ((), ())
