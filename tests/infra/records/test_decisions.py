"""The ledger and the transitions: in order, each once."""

import pytest
from sqlalchemy import select

from infra.records import decisions, schema
from workflows.messages.control import LedgerEntry
from workflows.messages.transition import Direction, StepTiming, TransitionFigures, TransitionReport, TransitionResult


def entry(number: int) -> LedgerEntry:
    return LedgerEntry(run="r", at=float(number), kind="refuse", reasons=("supply", "1 < 2"), token=f"r/{number}")


@pytest.fixture
def told(database):
    def tokens():
        with database.connect() as connection:
            return list(connection.scalars(select(schema.ledger.c.token).order_by(schema.ledger.c.entry)))

    return tokens


def test_entries_keep_their_order_and_are_recorded_once(database, told):
    decisions.add_entries(database, [entry(1), entry(2)])
    decisions.add_entries(database, [entry(2), entry(3)])
    decisions.add_entries(database, [entry(1)])
    decisions.add_entries(database, [])
    assert told() == ["r/1", "r/2", "r/3"]


def test_a_transition_is_recorded_once(database):
    report = TransitionReport(
        transition="r/transition/cell-1/000001",
        run="r",
        cell=1,
        direction=Direction.TO_TRAINING,
        result=TransitionResult.DONE,
        started_at=1.0,
        ended_at=2.0,
        steps=(StepTiming(name="cancel-requests", seconds=0.5),),
        figures=TransitionFigures(requests_moved=3),
        verbs=("rollout suspend",),
    )
    decisions.add_transition(database, report)
    decisions.add_transition(database, report.model_copy(update={"ended_at": 9.0}))
    with database.connect() as connection:
        (row,) = connection.execute(select(schema.transitions)).all()
    assert (row.direction, row.result, row.ended_at, row.figures["requests_moved"]) == ("to_training", "done", 2.0, 3)
    assert row.steps[0]["name"] == "cancel-requests"
    assert row.figures["verbs"] == ["rollout suspend"]
