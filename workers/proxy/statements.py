"""The few shapes of statements that the recorder runs all the time. Built once: building costs more than running."""

from functools import cache
from typing import Any

from sqlalchemy import Connection, CursorResult, Insert, Table, Update, bindparam, insert, update

_KEY = "key_"


def add(connection: Connection, table: Table, row: dict[str, Any]) -> None:
    """Insert one row."""
    connection.execute(_insert(table), row)


def change(connection: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> CursorResult[Any]:
    """Set `values` in the rows that `key` names."""
    where = {_KEY + name: value for name, value in key.items()}
    return connection.execute(_update(table, tuple(key)), where | values)


def put(connection: Connection, table: Table, key: str, row: dict[str, Any]) -> None:
    """Update the row that has this key, or insert it."""
    if not change(connection, table, {key: row[key]}, row).rowcount:
        add(connection, table, row)


@cache
def _insert(table: Table) -> Insert:
    return insert(table)


@cache
def _update(table: Table, key: tuple[str, ...]) -> Update:
    return update(table).where(*(table.c[name] == bindparam(_KEY + name) for name in key))
