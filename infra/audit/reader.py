"""Streaming rows out of a run's database: a few at a time, in an order each check can rely on."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, Row, Select

ROWS_AT_ONCE = 200


def stream(engine: Engine, query: Select) -> Iterator[Row]:
    """Rows of `query`, `ROWS_AT_ONCE` in memory. Other queries may run meanwhile: each has its own connection."""
    with engine.connect().execution_options(yield_per=ROWS_AT_ONCE) as connection:
        yield from connection.execute(query)


def scalar(engine: Engine, query: Select) -> Any:
    """The one value of a query that gives one row of one column."""
    with engine.connect() as connection:
        return connection.execute(query).scalar_one()
