"""The groups table: admission in one durable order, and the rows of the micro-steps a group is packed into."""

import time
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, func, insert, select, text

from infra.records.schema import groups, micro_steps
from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.group import MicroStep

_ADMISSION_LOCK = 0x67797265
"""Key of PostgreSQL's advisory lock that serialises admissions."""


class GroupMember(Message):
    """One execution of a group, frozen at admission.

    `target_tokens` is |T_i|; `left_out` says why it is not valid, None if it is; `staleness` counts versions since it
    was dispatched. Its targets were sampled by `oldest_version` to `newest_version`; `age` counts versions since the
    oldest of them, or since the dispatch if there is none: what the staleness bound is about.
    """

    execution: str
    outcome: str
    reward: float | None
    advantage: float | None
    target_tokens: int
    left_out: str | None
    staleness: int | None
    oldest_version: int | None = None
    newest_version: int | None = None
    age: int | None = None


@dataclass(frozen=True)
class GroupRow:
    """An admitted group."""

    group_id: str
    run: str
    burst: str
    group_index: int
    sequence: int
    admitted_version: int
    valid: int
    no_signal: str | None
    members: tuple[GroupMember, ...]


@dataclass(frozen=True)
class Admission:
    """What is frozen when a group is admitted."""

    run: str
    burst: str
    group: int
    version: int
    valid: int
    no_signal: str | None
    members: tuple[GroupMember, ...]


def get_group(connection: Connection, group_id: str) -> GroupRow | None:
    columns = [groups.c[name] for name in GroupRow.__dataclass_fields__]
    row = connection.execute(select(*columns).where(groups.c.group_id == group_id)).one_or_none()
    if row is None:
        return None
    values = dict(row._mapping)
    members = tuple(GroupMember.model_validate(member) for member in values.pop("members"))
    return GroupRow(members=members, **values)


def serialise_admissions(connection: Connection) -> None:
    """Let no other admission run until the end of this transaction.

    SQLite has one writer at a time anyway, once it writes: so take its write lock before reading.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADMISSION_LOCK})
    else:
        connection.execute(delete(groups).where(groups.c.group_id == ""))


def admit(connection: Connection, admission: Admission) -> GroupRow:
    """Insert a group with the next place in the run's order of admission, or return the row it already has.

    The caller holds `serialise_admissions`.
    """
    group_id = ids.group_id(admission.burst, admission.group)
    row = get_group(connection, group_id)
    if row is not None:
        return row
    newest = select(func.coalesce(func.max(groups.c.sequence), -1)).where(groups.c.run == admission.run)
    connection.execute(
        insert(groups).values(
            group_id=group_id,
            run=admission.run,
            burst=admission.burst,
            group_index=admission.group,
            sequence=connection.execute(newest).scalar_one() + 1,
            admitted_at=time.time(),
            admitted_version=admission.version,
            valid=admission.valid,
            no_signal=admission.no_signal,
            members=[member.model_dump(mode="json") for member in admission.members],
        )
    )
    row = get_group(connection, group_id)
    if row is None:
        raise RuntimeError(f"{group_id} was inserted and is not there")
    return row


def keep_micro_steps(engine: Engine, batch: str, group_id: str, packed: tuple[MicroStep, ...]) -> None:
    """Record what a group was packed into for a batch, replacing what an earlier attempt recorded."""
    with engine.begin() as connection:
        connection.execute(delete(micro_steps).where(micro_steps.c.batch == batch, micro_steps.c.group_id == group_id))
        for step in packed:
            connection.execute(
                insert(micro_steps).values(
                    batch=batch,
                    micro_step=step.index,
                    group_id=group_id,
                    uri=step.payload.uri,
                    sha256=step.payload.sha256,
                    tokens=step.tokens,
                    target_tokens=step.target_tokens,
                )
            )
