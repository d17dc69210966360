"""What both kinds of database take, and which URLs name one."""

import pytest
from sqlalchemy import insert, select

from infra.records import schema
from infra.records.database import holds_a_run, open_database, plain_json
from workflows.messages.errors import InvalidInput


@pytest.mark.parametrize("url", ["mysql://x/y", "not a url", ""])
def test_another_kind_of_url_is_refused_by_field(url):
    with pytest.raises(InvalidInput, match="database_url"):
        open_database(url)


@pytest.mark.parametrize("url", ["postgres://u@h/d", "postgresql://u@h/d", "postgresql+psycopg2://u@h/d"])
def test_every_postgresql_url_uses_our_driver(url):
    engine = open_database(url)
    assert (engine.url.drivername, engine.url.database) == ("postgresql+psycopg", "d")


def test_a_password_is_not_in_the_message():
    with pytest.raises(InvalidInput) as caught:
        open_database("mysql://me:secret@host/d")
    assert "secret" not in str(caught.value)


def test_an_empty_database_holds_no_run(database):
    assert not holds_a_run(database)
    with database.begin() as connection:
        connection.execute(insert(schema.boots).values(component="proxy", boot_epoch=1, booted_at=1.0, pid=1))
    assert holds_a_run(database)


def test_what_is_not_finite_is_recorded_as_null(database):
    metrics = {"loss": float("nan"), "norm": [float("inf"), 1.5], "name": "x"}
    row = {"batch": "b", "micro_step": 0, "attempt": 1, "cell": 0, "boot_epoch": 1, "version": 0, "claimed_at": 1.0}
    with database.begin() as connection:
        connection.execute(insert(schema.claims).values(**row, metrics=metrics))
        assert connection.scalars(select(schema.claims.c.metrics)).one() == {
            "loss": None,
            "norm": [None, 1.5],
            "name": "x",
        }
    assert plain_json((1, None)) == "[1, null]"


def test_text_of_any_origin_is_taken(database):
    row = dict.fromkeys(
        ("execution", "run", "burst", "purpose", "task", "harness", "client", "state", "workspace"), "x"
    )
    numbers = dict.fromkeys(("group_index", "member", "seed", "dispatch_version", "call_limit", "attempt"), 0)
    with database.begin() as connection:
        values = row | numbers | {"sampling": {}, "token_sha256": "", "detail": "a\0b\ud800"}
        connection.execute(insert(schema.executions).values(values))
        assert connection.scalars(select(schema.executions.c.detail)).one() == "a\ufffdb?"


def test_tables_are_made_once(database_url):
    for _ in range(2):
        open_database(database_url, create=True).dispose()
