"""`gyre ledger`: what the scheduler decided and refused, and why."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, RowMapping, select

from infra.records.database import open_database
from infra.records.schema import ledger as ledger_table
from workers.cli.runs import find_run


def ledger(
    *,
    run_dir: Path | None = None,
    kind: str | None = None,
    cell: int | None = None,
    last: int = 50,
    json_: bool = False,
) -> None:
    """Show the ledger, oldest entry first.

    Parameters
    ----------
    run_dir
        Folder (or name) of the run; without it the one last started.
    kind
        Only entries of this kind, such as move, refuse, stay, return, dispatch, publish or alarm.
    cell
        Only entries about this cell.
    last
        How many entries, counted from the end.
    json_
        One JSON object a line, with the policy's whole input.
    """
    manifest = find_run(run_dir)
    engine = open_database(manifest.database_url)
    rows = entries(engine, kind=kind, cell=cell, last=last)
    engine.dispose()
    if json_:
        for row in rows:
            print(json.dumps(dict(row)))
        return
    table = Table(title=f"ledger of {manifest.run}", title_justify="left")
    for column, style in (("time", "dim"), ("kind", ""), ("cell", ""), ("reasons", "")):
        table.add_column(column, style=style, overflow="fold")
    for row in rows:
        at = time.strftime("%H:%M:%S", time.localtime(row["at"]))
        table.add_row(at, row["kind"], "" if row["cell"] is None else str(row["cell"]), reasons_text(row["reasons"]))
    Console().print(table)


def entries(engine: Engine, *, kind: str | None, cell: int | None, last: int) -> list[RowMapping]:
    """The last entries that match, oldest first."""
    query = select(ledger_table).order_by(ledger_table.c.entry.desc()).limit(last)
    if kind is not None:
        query = query.where(ledger_table.c.kind == kind)
    if cell is not None:
        query = query.where(ledger_table.c.cell == cell)
    with engine.connect() as connection:
        return list(connection.execute(query).mappings())[::-1]


def reasons_text(reasons: Any) -> str:
    """A reason, a list of them or a mapping of name to text, in one line."""
    if isinstance(reasons, Mapping):
        return "; ".join(f"{name}: {reasons_text(reason)}" for name, reason in reasons.items())
    if isinstance(reasons, list):
        return "; ".join(reasons_text(reason) for reason in reasons)
    return str(reasons)
