"""Opening a run's database: a SQLite file by default, PostgreSQL by URL. Both behave the same to whoever uses them.

SQLite runs in WAL mode: a commit survives the kill of any process, which is what the recorder promises (a power
loss may lose the last commits, never corrupt), and writers wait for each other instead of failing.
"""

import json
import math
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url, select
from sqlalchemy.exc import ArgumentError

from infra.records import schema
from workflows.messages.errors import InvalidInput

BUSY_SECONDS = 30

_POSTGRESQL_DRIVER = "postgresql+psycopg"


def open_database(url: str, *, create: bool = False) -> Engine:
    """Engine for `url` (``sqlite:///FILE`` or ``postgresql://...``); `create` makes missing tables.

    Raises InvalidInput for a URL of another kind, `sqlalchemy.exc.SQLAlchemyError` when it cannot be reached.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite":
        wait = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        engine = create_engine(parsed, connect_args=wait, json_serializer=plain_json)
        event.listen(engine, "connect", _set_pragmas)
    else:
        engine = create_engine(parsed, pool_pre_ping=True, json_serializer=plain_json)
    if create:
        schema.metadata.create_all(engine)
    return engine


def holds_a_run(engine: Engine) -> bool:
    """Whether anything of a run is recorded here. A database belongs to one run: versions and boots count from its
    beginning."""
    with engine.connect() as connection:
        tables = (schema.boots, schema.updates, schema.executions, schema.ledger)
        return any(connection.execute(select(table).limit(1)).first() is not None for table in tables)


def has_dispatched(engine: Engine) -> bool:
    """Whether an execution or a batch of a run is recorded here: more than that its processes were started."""
    with engine.connect() as connection:
        tables = (schema.executions, schema.batches, schema.groups)
        return any(connection.execute(select(table).limit(1)).first() is not None for table in tables)


def plain_json(value: Any) -> str:
    """JSON that every database takes: what is not finite becomes null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


def _parsed(url: str) -> URL:
    """The URL with the one driver we use for its kind of database."""
    try:
        parsed = make_url(url)
        kind = parsed.get_backend_name()
    except ArgumentError as error:
        raise InvalidInput(f"not a database URL: {error}", field="database_url") from error
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise InvalidInput(f"{kind} is not a database we know; sqlite and postgresql are", field="database_url")
    return parsed if kind == "sqlite" else parsed.set(drivername=_POSTGRESQL_DRIVER)


def _set_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    cursor.close()
