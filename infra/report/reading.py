"""The records of a run as plain rows and arrays: read once, in as little memory as they take."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, Row, Select, and_, func, inspect, select

from infra.records import schema
from infra.report.changes import Boot, Change, Entry, Roles, seen
from infra.report.cuts import Cut, Resumed
from infra.report.moves import Work
from infra.settings.fleet import Fleet
from workflows.messages.errors import InvalidInput

ROWS_AT_ONCE = 500
_READ = (
    schema.executions,
    schema.calls,
    schema.segments,
    schema.groups,
    schema.batches,
    schema.micro_steps,
    schema.claims,
    schema.transitions,
    schema.ledger,
    schema.boots,
    schema.engines,
)


@dataclass(frozen=True)
class ExecutionFact:
    """One execution. Moments in seconds since the epoch; `seconds`: how long its harness ran, None if it runs yet."""

    execution: str
    burst: str
    group: int
    purpose: str
    prepared_at: float | None
    closed_at: float | None
    seconds: float | None
    wall_seconds: float | None
    end_reason: str | None
    reward: float | None


@dataclass(frozen=True)
class Claim:
    """A claimed micro-step. `counted`: its gradient is part of a committed update."""

    batch: str
    cell: int
    claimed_at: float
    done_at: float
    target_tokens: int
    counted: bool


@dataclass(frozen=True)
class Update:
    """A batch. Rewards are of its valid executions; `staleness`: of each of them, versions from dispatch to use."""

    batch: str
    opened_at: float
    committed_at: float | None
    version_after: int | None
    rewards: tuple[float, ...]
    staleness: tuple[int, ...]
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Segments:
    """Arrays [n]: cell, begin, end (of those that have ended) and output tokens."""

    cell: np.ndarray
    spans: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True)
class Records:
    """Everything the account of a run is made from. `end`: the last moment on record."""

    run: str
    slots: Mapping[int, int]
    entries: tuple[Entry, ...]
    changes: tuple[Change, ...]
    boots: tuple[Boot, ...]
    executions: tuple[ExecutionFact, ...]
    claims: tuple[Claim, ...]
    updates: tuple[Update, ...]
    segments: Segments
    cuts: tuple[Cut, ...]
    resumed: tuple[Resumed, ...]
    end: float

    @property
    def begin(self) -> float:
        """The first moment on record; `end` when nothing is."""
        moments = [boot.at for boot in self.boots] + [change.started_at for change in self.changes]
        moments += [entry.at for entry in self.entries]
        moments += [fact.prepared_at for fact in self.executions if fact.prepared_at is not None]
        return min(moments, default=self.end)

    def roles(self) -> Roles:
        return Roles(self.changes, self.boots, self.end)

    def work(self) -> Work:
        counted = [claim for claim in self.claims if claim.counted]
        trained = np.array([(claim.claimed_at, claim.done_at) for claim in counted]).reshape(-1, 2)
        return Work(
            (self.segments.spans, self.segments.tokens),
            (trained, np.array([claim.target_tokens for claim in counted], dtype=np.float64)),
            [fact.closed_at for fact in self.executions if fact.closed_at is not None],
            [update.committed_at for update in self.updates if update.committed_at is not None],
        )


def require_current(engine: Engine, run: str) -> None:
    """Make the tables of a run that has none yet. Raises InvalidInput when another version of OpenGyre wrote them."""
    inspector = inspect(engine)
    present = set(inspector.get_table_names())
    if not present & schema.metadata.tables.keys():
        schema.metadata.create_all(engine)
        return
    for table in _READ:
        name = table.name
        columns = {column["name"] for column in inspector.get_columns(name)} if name in present else set()
        missing = [column.name for column in table.columns if column.name not in columns]
        if missing:
            what = f"table {name}" if name not in present else f"{name}.{missing[0]}"
            raise InvalidInput(
                f"run {run} was recorded by another version of OpenGyre: its records have no {what}. "
                "Read it with the version that recorded it",
                field="run",
            )


def read(engine: Engine, fleet: Fleet) -> Records:
    """All of a run. Raises InvalidInput when its tables are of another version."""
    require_current(engine, fleet.run)
    with engine.connect() as connection:
        executions = tuple(_executions(connection))
        changes = tuple(_changes(connection))
        boots = tuple(_boots(connection))
        entries = tuple(read_entries(connection))
        claims = tuple(_claims(connection))
        updates = tuple(_updates(connection))
        segments = _segments(connection)
        offered = {row.cell: row.slots for row in _rows(connection, select(schema.engines))}
        cuts, resumed = tuple(_cuts(connection)), tuple(_resumed(connection))
    moments = [boot.at for boot in boots] + [change.ended_at for change in changes] + [entry.at for entry in entries]
    moments += [moment for fact in executions for moment in (fact.prepared_at, fact.closed_at) if moment is not None]
    moments += [claim.done_at for claim in claims] + [u.committed_at or u.opened_at for u in updates]
    if len(segments.spans):
        moments.append(float(segments.spans[:, 1].max()))
    return Records(
        run=fleet.run,
        slots={cell.index: cell.slots for cell in fleet.cells} | offered,
        entries=entries,
        changes=changes,
        boots=boots,
        executions=executions,
        claims=claims,
        updates=updates,
        segments=segments,
        cuts=cuts,
        resumed=resumed,
        end=max(moments, default=0.0),
    )


def read_entries(connection: Connection) -> Iterator[Entry]:
    """The ledger in the order in which it was written."""
    for row in _rows(connection, select(schema.ledger).order_by(schema.ledger.c.entry)):
        yield entry_of(row)


def entry_of(row: Row) -> Entry:
    reasons = row.reasons if isinstance(row.reasons, list) else [row.reasons]
    return Entry(
        token=row.token or str(row.entry),
        at=row.at,
        kind=row.kind,
        cell=row.cell,
        reasons=tuple(str(reason) for reason in reasons),
        policy=row.policy,
        direction=row.direction,
        together=tuple(row.together or ()),
        bottleneck=row.bottleneck,
        expected_gain_seconds=row.expected_gain_seconds,
        iteration_seconds=row.iteration_seconds,
        migration_seconds=row.migration_seconds,
        realised_gain_seconds=row.realised_gain_seconds,
        about=row.about,
        **seen(row.state or {}),
    )


def _rows(connection: Connection, query: Select) -> Iterator[Row]:
    yield from connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)


def _executions(connection: Connection) -> Iterator[ExecutionFact]:
    table = schema.executions
    names = ("execution", "burst", "group_index", "purpose", "prepared_at", "closed_at", "harness_seconds")
    names += ("wall_seconds", "end_reason", "reward")
    for row in _rows(connection, select(*(table.c[name] for name in names)).order_by(table.c.prepared_at)):
        yield ExecutionFact(*row)


def _changes(connection: Connection) -> Iterator[Change]:
    table = schema.transitions
    for row in _rows(connection, select(table).order_by(table.c.started_at)):
        yield Change(
            transition=row.transition,
            cell=row.cell,
            direction=row.direction,
            started_at=row.started_at,
            ended_at=row.started_at if row.ended_at is None else row.ended_at,
            result=row.result or "",
            steps=tuple(row.steps or ()),
            figures=row.figures or {},
        )


def _boots(connection: Connection) -> Iterator[Boot]:
    table = schema.boots
    for row in _rows(connection, select(table).where(table.c.component.like("cell-%")).order_by(table.c.booted_at)):
        yield Boot(int(row.component.removeprefix("cell-")), row.booted_at)


def _claims(connection: Connection) -> Iterator[Claim]:
    counted = {
        (row.batch, done["index"], done["attempt"])
        for row in _rows(connection, select(schema.batches.c.batch, schema.batches.c.accepted))
        for done in row.accepted or ()
    }
    table, packed = schema.claims, schema.micro_steps
    same = and_(packed.c.batch == table.c.batch, packed.c.micro_step == table.c.micro_step)
    query = select(table, packed.c.target_tokens).outerjoin(packed, same).where(table.c.done_at.is_not(None))
    for row in _rows(connection, query.order_by(table.c.claimed_at)):
        yield Claim(
            batch=row.batch,
            cell=row.cell,
            claimed_at=row.claimed_at,
            done_at=row.done_at,
            target_tokens=row.target_tokens or 0,
            counted=(row.batch, row.micro_step, row.attempt) in counted,
        )


def _updates(connection: Connection) -> Iterator[Update]:
    members: dict[str, list[tuple[Mapping[str, Any], int]]] = {}
    for row in _rows(connection, select(schema.groups).where(schema.groups.c.batch.is_not(None))):
        waited = row.consumed_version - row.admitted_version
        members.setdefault(row.batch, []).extend((member, waited) for member in row.members)
    table = schema.batches
    for row in _rows(connection, select(table).order_by(table.c.opened_at)):
        valid = [(member, waited) for member, waited in members.get(row.batch, ()) if member["left_out"] is None]
        yield Update(
            batch=row.batch,
            opened_at=row.opened_at,
            committed_at=row.committed_at,
            version_after=row.version_after,
            rewards=tuple(member["reward"] for member, _ in valid if member["reward"] is not None),
            staleness=tuple(
                member["staleness"] + waited for member, waited in valid if member.get("staleness") is not None
            ),
            cells=tuple(done["cell"] for done in row.accepted or ()),
        )


def _segments(connection: Connection) -> Segments:
    table = schema.segments
    query = select(table.c.cell, table.c.started_at, table.c.ended_at, table.c.output_tokens)
    rows = _rows(connection, query.where(table.c.ended_at.is_not(None)).order_by(table.c.started_at))
    found = np.array([tuple(row) for row in rows], dtype=np.float64).reshape(-1, 4)
    return Segments(found[:, 0].astype(np.int64), found[:, 1:3], found[:, 3])


def _cuts(connection: Connection) -> Iterator[Cut]:
    before, after = schema.segments.alias("before"), schema.segments.alias("after")
    follows = and_(after.c.call == before.c.call, after.c.segment == before.c.segment + 1)
    query = select(
        before.c.call,
        before.c.cell,
        before.c.ended_at,
        before.c.last_token_at,
        after.c.cell.label("destination"),
        after.c.first_token_at,
        after.c.ended_at.label("after_ended_at"),
        after.c.prompt_tokens,
        after.c.cached_tokens,
    ).join(after, follows)
    for row in _rows(connection, query.where(before.c.ended_at.is_not(None)).order_by(before.c.ended_at)):
        yield Cut(
            call=row.call,
            cell=row.cell,
            at=row.ended_at,
            destination=row.destination,
            quiet_from=row.ended_at if row.last_token_at is None else row.last_token_at,
            heard_at=row.after_ended_at if row.first_token_at is None else row.first_token_at,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=None if row.after_ended_at is None else row.cached_tokens or 0,
        )


def _resumed(connection: Connection) -> Iterator[Resumed]:
    calls, first = schema.calls, schema.segments.alias("first")
    last, earlier = schema.segments.alias("last"), schema.segments.alias("earlier")
    newest = select(func.max(earlier.c.segment)).where(earlier.c.call == calls.c.parent_call).scalar_subquery()
    query = (
        select(
            calls.c.call,
            last.c.cell,
            last.c.ended_at,
            first.c.started_at,
            first.c.cell.label("destination"),
            calls.c.shared_tokens,
            first.c.cached_tokens,
            first.c.ended_at.label("first_ended_at"),
        )
        .join(first, and_(first.c.call == calls.c.call, first.c.segment == 0))
        .join(last, and_(last.c.call == calls.c.parent_call, last.c.segment == newest))
        .where(first.c.cell != last.c.cell, first.c.version == last.c.version, last.c.ended_at.is_not(None))
    )
    for row in _rows(connection, query.order_by(first.c.started_at)):
        cached = None if row.first_ended_at is None else row.cached_tokens or 0
        yield Resumed(row.call, row.cell, row.ended_at, row.started_at, row.destination, row.shared_tokens, cached)
