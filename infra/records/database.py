"""Opening a run's database.

SQLite runs in WAL mode: a commit survives the kill of any process, which is what the recorder promises (a power
loss may lose the last commits, never corrupt), and writers wait for each other instead of failing.
"""

from sqlalchemy import Engine, create_engine, event

from infra.records.schema import metadata

BUSY_SECONDS = 30


def open_database(url: str, *, create: bool = False) -> Engine:
    """Engine for `url` (``sqlite:///FILE`` or ``postgresql+psycopg://...``); `create` makes missing tables.

    Raises `sqlalchemy.exc.SQLAlchemyError` when the database cannot be reached.
    """
    if url.startswith("sqlite"):
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})

        @event.listens_for(engine, "connect")
        def _pragmas(connection, _record) -> None:  # pyright: ignore[reportUnusedFunction]
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
            cursor.close()
    else:
        engine = create_engine(url, pool_pre_ping=True)
    if create:
        metadata.create_all(engine)
    return engine
