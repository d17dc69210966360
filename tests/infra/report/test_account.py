"""The account of a recorded run (the audit's made-up one), its page and its exports."""

import csv
import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from sqlalchemy import insert, text, update

from infra.records import schema
from infra.records.database import open_database
from infra.report import tables
from infra.report.account import Account, account
from infra.report.page import figures, page
from infra.report.reading import read
from infra.settings.fleet import Fleet
from tests.infra.audit import synthetic
from tests.infra.audit.recording import RUN, SLOTS, T0
from workflows.messages.errors import InvalidInput
from workflows.messages.fleet import CellSpec

FLEET = Fleet(run=RUN, cells=tuple(CellSpec(index=index, slots=SLOTS) for index in range(3)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    run = synthetic.build(tmp_path_factory.mktemp("recorded"))
    table = schema.segments
    cut = {"ended_at": table.c.started_at + 1.35, "last_token_at": table.c.started_at + 1.3}
    with run.engine.begin() as connection:
        connection.execute(update(table).values(first_token_at=table.c.started_at + 0.2, cached_tokens=6))
        connection.execute(update(table).where(table.c.ended == "abort").values(**cut))
        connection.execute(update(schema.executions).values(wall_seconds=40.0, harness_seconds=20.0))
    yield run
    run.engine.dispose()


@pytest.fixture(scope="module")
def found(recorded) -> Account:
    return account(read(recorded.engine, FLEET))


def test_every_move_has_its_transition(found):
    assert [(move.entry.cell, move.result) for move in found.moves.values()] == [(0, "done"), (1, "done")] * 2
    first = next(iter(found.moves.values()))
    assert first.topology_before == "rollout 0-2"
    assert first.topology_after == "rollout 1-2; training 0"
    assert first.entry.waterlevel is not None
    assert first.entry.capacity == 3 * SLOTS


def test_what_was_moved_is_counted_from_the_segments(found):
    totals = found.totals
    assert (totals.requests_moved, totals.broken_requests) == (2, 0)
    assert totals.pause_seconds == pytest.approx(2 * 0.3, abs=1e-5)  # 30.3 to 30.6 s, in both bursts
    assert totals.longest_pause_seconds == pytest.approx(0.3, abs=1e-5)
    assert (totals.kv_tokens_reused, totals.kv_tokens_recomputed) == (2 * 6, 2 * 8)  # 14 tokens were sent again
    assert totals.spent == pytest.approx(sum(c.seconds for c in found.records.changes if c.direction.startswith("to_")))


def test_every_second_of_a_cell_is_accounted_for(found):
    for cell in found.cells:
        parts = (
            cell.rollout
            + cell.in_training
            + cell.changing
            + cell.publishing
            + cell.starting
            + cell.parked
            + cell.retired
        )
        assert parts == pytest.approx(found.records.end - T0)
    assert sum(cell.training for cell in found.cells) == pytest.approx(
        found.totals.trained_free + found.totals.trained_full
    )


def test_the_page_stands_alone_and_shows_everything(found):
    shown = page(found)
    for part in (
        "Roles over time",
        "Waterlevel",
        "longest execution",
        "idle",
        "versions between",
        "mean reward",
        "net",
    ):
        assert part in shown
    assert shown.count("<svg") == shown.count("</svg>") == 6
    assert "http" not in shown.replace("http://www.w3.org", "")  # names of XML, never loaded
    for piece in shown.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + piece[: piece.index("</svg>") + len("</svg>")])
    json.dumps(figures(found), allow_nan=False)


def test_texts_are_shown_as_texts(found, tmp_path):
    move = next(iter(found.moves.values()))
    said = replace(move, changes=(), entry=replace(move.entry, reasons=("<script>alert(1)</script>",)))
    engine = open_database(f"sqlite:///{tmp_path / 'records.db'}")
    shown = page(replace(account(read(engine, FLEET)), moves={"t": said}))
    engine.dispose()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_exports_keep_rows_and_types(found, tmp_path):
    from pyarrow import parquet

    rows = tables.decision_rows(found, found.records.entries)
    tables.write_csv(rows, tables.DECISIONS, tmp_path / "ledger.csv")
    tables.write_parquet(rows, tables.DECISIONS, tmp_path / "ledger.parquet")
    with (tmp_path / "ledger.csv").open() as file:
        read_back = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "ledger.parquet")
    assert table.num_rows == len(read_back) == len(found.records.entries)
    assert table.column_names == list(read_back[0]) == list(tables.DECISIONS)
    assert str(table.schema.field("prediction_error").type) == "double"  # though nothing was predicted here
    moved = [row for row in table.to_pylist() if row["kind"] == "move"]
    assert [row["result"] for row in moved] == ["done"] * 4
    assert sum(row["requests_moved"] for row in moved) == 2


def test_transitions_say_from_where_to_where_and_whose_decision(found):
    rows = tables.transition_rows(found)
    leaving = [row for row in rows if row["direction"] == "to_training"]
    assert [row["decision"] for row in leaving] == list(found.moves)
    assert leaving[0]["topology_before"] == "rollout 0-2"
    assert leaving[0]["topology_after"] == "rollout 1-2; training 0"
    assert {name for row in rows for name in row} == set(tables.TRANSITIONS)


def test_a_run_of_which_nothing_is_recorded(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'records.db'}")
    found = account(read(engine, FLEET))
    engine.dispose()
    assert found.totals.verdict.startswith("No cell has changed its role")
    assert page(found).count("Nothing on record yet") >= 5
    json.dumps(figures(found), allow_nan=False)


def test_a_run_that_has_just_begun(database):
    """On both databases: booted, dispatched, nothing closed."""
    state = {"dispatched": 4, "launched": 4, "finished": 0, "cells": [], "standalone_slots": 0}
    with database.begin() as connection:
        connection.execute(insert(schema.boots), [{"component": "cell-0", "boot_epoch": 1, "booted_at": 1.0, "pid": 1}])
        connection.execute(
            insert(schema.ledger),
            [{"run": RUN, "at": 5.0, "kind": "dispatch", "reasons": ["b: 1 groups"], "state": state, "token": "t"}],
        )
    found = account(read(database, FLEET))
    assert found.roles.at(5.0) == {0: "starting"}
    assert page(found).count("<svg") == 3


def test_records_of_another_version_are_named(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE segments DROP COLUMN first_token_at"))
    with pytest.raises(
        InvalidInput, match=r"another version of OpenGyre: its records have no segments\.first_token_at"
    ):
        read(engine, FLEET)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE segments"))
    with pytest.raises(InvalidInput, match="no table segments"):
        read(engine, FLEET)
    engine.dispose()
