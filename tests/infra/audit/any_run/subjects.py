"""What a fault is planted in: rows of a recorded run, by what they are. LookupError: the run has nothing like it."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Table, select

from infra.records import schema
from tests.infra.audit.recording import SyntheticRun

Row = dict[str, Any]
Plant = Callable[[SyntheticRun], None]
PLANTS: list[tuple[str, Plant]] = []
"""(code that must be found, the doing)."""

COUNTERS = ("dispatched", "launched", "finished")


def plants(code: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        PLANTS.append((code, plant))
        return plant

    return register


def rows(run: SyntheticRun, table: Table, *order: str, holds: Callable[[Row], Any] = lambda row: True) -> list[Row]:
    """The rows that `holds`, in order of these columns (of the primary key without any)."""
    columns = [table.c[name] for name in order] or list(table.primary_key)
    with run.engine.connect() as connection:
        found = [dict(row) for row in connection.execute(select(table).order_by(*columns)).mappings()]
    return [row for row in found if holds(row)]


def first(found: list[Row], what: str) -> Row:
    if not found:
        raise LookupError(f"this run has no {what}")
    return found[0]


def change(run: SyntheticRun, table: Table, row: Row, **values: Any) -> None:
    """Set columns of exactly this row."""
    run.change(table, {column.name: row[column.name] for column in table.primary_key}, **values)


# --- training


def batches(run: SyntheticRun) -> list[Row]:
    """Committed batches that trained something, in order."""
    return rows(run, schema.batches, "version_before", holds=lambda row: row["committed_at"] and row["accepted"])


def batch(run: SyntheticRun) -> Row:
    return first(batches(run), "committed batch")


def micro_step(run: SyntheticRun) -> Row:
    name = batch(run)["batch"]
    return first(rows(run, schema.micro_steps, holds=lambda row: row["batch"] == name), "micro-step")


def claim(run: SyntheticRun) -> Row:
    """The claim of what the first batch accepted first."""
    counted = batch(run)["accepted"][0]
    key = {"batch": batch(run)["batch"], "micro_step": counted["index"], "attempt": counted["attempt"]}
    return run.row(schema.claims, **key)


def group(run: SyntheticRun) -> Row:
    """A group with signal that the first batch consumed."""
    name = batch(run)["batch"]
    with_signal = rows(
        run, schema.groups, "sequence", holds=lambda row: row["batch"] == name and row["no_signal"] is None
    )
    return first(with_signal, "group with signal")


def change_members(run: SyntheticRun, of: Row, place: int, **values: Any) -> None:
    members = list(of["members"])
    members[place] = members[place] | values
    change(run, schema.groups, of, members=members)


# --- requests


def calls(run: SyntheticRun, **least: int) -> list[Row]:
    """Finished calls with at least so much of these columns."""
    return rows(
        run,
        schema.calls,
        "execution",
        "sequence",
        holds=lambda row: row["state"] == "finished" and all(row[name] >= value for name, value in least.items()),
    )


def call(run: SyntheticRun, **least: int) -> Row:
    return first(calls(run, **least), f"finished call with {least}")


def child(run: SyntheticRun) -> Row:
    """A finished call that continues another one."""
    return first([row for row in calls(run, shared_tokens=1) if row["parent_call"]], "call with a parent")


def segments(run: SyntheticRun, of: str) -> list[Row]:
    return rows(run, schema.segments, holds=lambda row: row["call"] == of)


# --- the ledger


def entries(run: SyntheticRun) -> list[Row]:
    """Ledger entries with counters, in order."""
    return rows(run, schema.ledger, "entry", holds=lambda row: "dispatched" in row["state"])


def moves(run: SyntheticRun, cell: Callable[[int], bool] = lambda cell: True) -> list[Row]:
    return [row for row in entries(run) if row["kind"] == "move" and cell(row["cell"])]


def satellite_move(run: SyntheticRun) -> Row:
    """A satellite's move while the core is in training."""
    found = [row for row in moves(run, lambda cell: cell > 0) if row["state"]["cells"][0]["role"] == "training"]
    return first(found, "satellite that joined the core")


def change_state(run: SyntheticRun, entry: Row, **values: Any) -> None:
    change(run, schema.ledger, entry, state=entry["state"] | values)


def change_cell(run: SyntheticRun, entry: Row, cell: int, **values: Any) -> None:
    cells = [dict(one) for one in entry["state"]["cells"]]
    cells[cell] |= values
    change_state(run, entry, cells=cells)


def departures(run: SyntheticRun) -> list[Row]:
    """Role changes into training that were done, in order."""
    return rows(
        run,
        schema.transitions,
        "started_at",
        holds=lambda row: row["direction"] == "to_training" and row["result"] == "done",
    )
