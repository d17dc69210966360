"""A Scheduler whose own state is gone (case 53): what it had given away is not given away again."""

from sqlalchemy import insert

from infra.records.database import open_database
from infra.records.schema import executions
from tests.workers.proxy.conftest import execution_row_of
from workers.control.lost_books import books_after, recorded_books
from workflows.accounts import Accounts
from workflows.messages.burst import BurstSpec, Sampling
from workflows.messages.routing import RegisterExecution


def test_a_first_run_begins_with_empty_books(tmp_path):
    engine = open_database("sqlite://", create=True)
    accounts, positions = recorded_books(engine, tmp_path, "")
    engine.dispose()
    assert (accounts.dispatched, accounts.next_group, positions) == (0, {}, {})


def test_what_was_given_away_stays_given():
    accounts, positions = books_after({"first": (4, 16), "second": (2, 8)}, {"dispatched": 20, "position/t/train/0": 6})
    books = Accounts("r", accounts)
    assert (books.dispatched, books.launched, books.finished) == (24, 24, 24)  # no less than what is on record
    assert (books.waterlevel, books.outstanding()) == (0, 0)
    assert positions == {"t/train/0": 6}
    assert books.knows("first")
    assert not books.knows("third")
    spec = BurstSpec(run="r", name="first", tasks="t", executions_per_group=1)
    assert books.dispatch(spec, ["a"], 3) == 1
    assert [(taken.burst, taken.group) for taken in books.launch(9, now=0.0)] == [("first", 4)]


def test_more_was_dispatched_than_ever_ran():
    accounts, _ = books_after({"first": (1, 4)}, {"dispatched": 16, "launched": 4, "finished": 4})
    assert (accounts.dispatched, accounts.launched, accounts.finished) == (16, 16, 16)


def test_the_records_tell_and_a_checkpoint_that_is_gone_is_no_obstacle(tmp_path, caplog):
    engine = open_database("sqlite://", create=True)
    with engine.begin() as connection:
        for member in range(3):
            registration = RegisterExecution(
                execution=f"r/execution/b/0000/{member:02d}", run="r", token_sha256=f"{member:064d}", attempt=1, seed=1,
                sampling=Sampling(), call_limit=1,
            )  # fmt: skip
            connection.execute(insert(executions).values(execution_row_of(registration, member)))
    accounts, positions = recorded_books(engine, tmp_path, "v000001-001")
    engine.dispose()
    assert (accounts.dispatched, accounts.next_group, positions) == (3, {"b": 1}, {})
    assert "no task positions" in caplog.text
