"""Rows of executions: opened once, scored once, closed once, whoever repeats a step."""

import threading

import pytest
from sqlalchemy import update

from infra.records.executions import ExecutionRecords, close_unreported, execution_of, said
from infra.records.schema import executions
from workflows.messages.burst import HarnessChoice, Limits, Purpose, Sampling
from workflows.messages.errors import Fenced
from workflows.messages.execution import EndReason, Evaluation, ExecutionSpec, HarnessRun, Outcome

SPEC = ExecutionSpec(
    run="test",
    burst="first",
    group=1,
    member=2,
    purpose=Purpose.TRAIN,
    task="/tasks/one",
    seed=5,
    dispatch_version=4,
    sampling=Sampling(),
    harness=HarnessChoice(),
    limits=Limits(),
)
NAME = execution_of(SPEC)
SUBMITTED = HarnessRun(end=EndReason.SUBMITTED)


@pytest.fixture
def records(database) -> ExecutionRecords:
    return ExecutionRecords(database)


def scored(reward: float) -> Evaluation:
    return Evaluation(outcome=Outcome.SCORED, reward=reward)


def test_open_once(records):
    row = records.open(SPEC, token_sha256="a", workspace="/w")
    assert (row.execution, row.attempt, row.state, row.dispatch_version) == (NAME, 1, "open", 4)
    assert records.open(SPEC, token_sha256="a", workspace="/w") == row
    with pytest.raises(Fenced, match="another token"):
        records.open(SPEC, token_sha256="b", workspace="/w")


def test_open_from_many_threads_at_once(records):
    rows: list[object] = []
    threads = [
        threading.Thread(target=lambda: rows.append(records.open(SPEC, token_sha256="a", workspace="/w")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rows) == 8
    assert len(set(map(repr, rows))) == 1


def test_the_first_score_stays(records):
    records.open(SPEC, token_sha256="a", workspace="/w")
    assert records.score(NAME, scored(0.5)) == scored(0.5)
    assert records.score(NAME, scored(1.0)).reward == 0.5
    assert records.score("unknown", scored(1.0)).reward == 1.0


def test_close_once_and_nothing_opens_it_again(records):
    records.open(SPEC, token_sha256="a", workspace="/w")
    assert records.close(SPEC, SUBMITTED, scored(0.5))
    assert not records.close(SPEC, HarnessRun(end=EndReason.CANCELLED), scored(1.0))
    row = records.get(NAME)
    assert (row.end_reason, row.reward, row.state) == ("submitted", 0.5, "closed")
    with pytest.raises(Fenced, match="closed"):
        records.open(SPEC, token_sha256="a", workspace="/w")


def test_close_of_one_that_was_never_opened_leaves_a_row(records):
    assert records.close(SPEC, HarnessRun(end=EndReason.NEVER_RAN), Evaluation(outcome=Outcome.NO_ARTIFACT))
    row = records.get(NAME)
    assert (row.end_reason, row.outcome, row.reward, row.model_calls) == ("never_ran", "no_artifact", None, 0)


@pytest.mark.parametrize(("score", "outcome", "reward"), [(None, "no_artifact", None), (0.5, "scored", 0.5)])
def test_an_unreported_end_keeps_the_score_on_record(records, database, score, outcome, reward):
    records.open(SPEC, token_sha256="a", workspace="/w")
    if score is not None:
        records.score(NAME, scored(score))
    for _ in range(2):
        with database.begin() as connection:
            close_unreported(connection, NAME)
    row = records.get(NAME)
    assert (row.state, row.end_reason, row.outcome, row.reward) == ("closed", "terminated", outcome, reward)
    with database.begin() as connection:
        close_unreported(connection, "unknown")


def test_attempts_count_up_and_the_proxys_columns_are_left_alone(records, database):
    records.open(SPEC, token_sha256="a", workspace="/w")
    with database.begin() as connection:
        connection.execute(update(executions).values(model_calls=7, first_call_at=1.0))
    assert [records.next_attempt(NAME), records.next_attempt(NAME)] == [2, 3]
    records.close(SPEC, SUBMITTED, scored(0))
    row = records.get(NAME)
    assert (row.model_calls, row.first_call_at, row.attempt) == (7, 1.0, 3)


@pytest.mark.parametrize(
    ("run", "evaluation", "told"),
    [
        ("exit code 127", ("scored", ""), "harness: exit code 127"),
        ("", ("evaluator_failed", "no reward file"), "grader: no reward file"),
        ("exit code 1", ("evaluator_failed", "no reward file"), "harness: exit code 1; grader: no reward file"),
        ("not installed", ("no_artifact", "not installed"), "not installed"),
        ("", ("scored", ""), ""),
    ],
)
def test_what_was_said_is_kept_with_who_said_it(run, evaluation, told):
    outcome, detail = evaluation
    assert said(HarnessRun(end=EndReason.CRASHED, detail=run), Evaluation(outcome=outcome, detail=detail)) == told
