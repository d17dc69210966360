"""Executions that never asked the model anything are told apart from a weak policy."""

import pytest
from sqlalchemy import insert

from infra.records import schema
from infra.records.database import open_database
from infra.report.alarms import alarms
from tests.infra.report.closed import execution_row


@pytest.fixture
def told(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)

    def told(*ends):
        rows = [execution_row(member, **end) for member, end in enumerate(ends)]
        with engine.begin() as connection:
            connection.execute(insert(schema.executions), rows)
            return alarms(connection)

    yield told
    engine.dispose()


def test_crashes_before_the_first_call_and_those_that_never_ran_are_counted(told):
    silent = {"end_reason": "crashed", "detail": "harness: exit code 127", "model_calls": 0}
    lines = told(
        silent,
        silent,
        silent | {"detail": "harness: exit code 1"},
        {"end_reason": "never_ran", "outcome": "no_artifact", "detail": "task.toml: missing", "model_calls": 0},
        {"end_reason": "crashed", "first_call_at": 1.5, "model_calls": 2},
        {"end_reason": "submitted", "first_call_at": 1.5, "model_calls": 2},
    )
    assert lines == [
        "burst first: 3 of 6 executions of made-up crashed before their first model call: harness: exit code 127",
        "burst first: 1 of 6 executions of made-up could not be started: task.toml: missing",
    ]


def test_a_weak_policy_and_a_cancelled_burst_are_no_alarm(told):
    assert (
        told(
            {"end_reason": "wall_limit", "first_call_at": 1.5, "model_calls": 3},
            {"end_reason": "cancelled", "outcome": "no_artifact", "model_calls": 0},
            {"end_reason": None, "closed_at": None, "model_calls": 0},
        )
        == []
    )
