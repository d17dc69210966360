"""What training and role changes took in a recorded run: each number by itself, with times that a reader can add up."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select

from infra.records import schema
from infra.records.database import open_database
from infra.simulator.recorded_training import Training, read_moves, read_training


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    engine = open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)
    with engine.begin() as open_one:
        yield open_one
    engine.dispose()


def _batch(connection: Connection, step: int, opened: float, committed: float, groups: Sequence[int]) -> None:
    values = {
        "batch": f"b{step}",
        "run": "r",
        "burst": "a",
        "step": step,
        "opened_at": opened,
        "committed_at": committed,
        "version_before": step,
        "groups": [f"a/{group:04d}" for group in groups],
    }
    connection.execute(insert(schema.batches).values(values))


def _group(connection: Connection, group: int, ended: float, admitted: float) -> None:
    values = {
        "group_id": f"a/{group:04d}",
        "run": "r",
        "burst": "a",
        "group_index": group,
        "sequence": group,
        "admitted_at": admitted,
        "admitted_version": 0,
        "valid": 1,
        "members": [],
    }
    connection.execute(insert(schema.groups).values(values))
    execution = {
        "execution": f"r/execution/a/{group}/0",
        "run": "r",
        "burst": "a",
        "group_index": group,
        "member": 0,
        "purpose": "train",
        "task": "t",
        "harness": "h",
        "client": "thin",
        "seed": 0,
        "dispatch_version": 0,
        "sampling": {},
        "call_limit": 8,
        "token_sha256": str(group),
        "attempt": 1,
        "state": "closed",
        "workspace": "",
        "prepared_at": 0.0,
        "ended_at": ended,
    }
    connection.execute(insert(schema.executions).values(execution))


def _claim(
    connection: Connection, batch: int, number: int, group: int, cell: int, at: float, done: float, attempt: int = 1
) -> None:
    """One attempt at a micro-step; the first one brings the micro-step."""
    if attempt == 1:
        step = {
            "batch": f"b{batch}",
            "micro_step": number,
            "group_id": f"a/{group:04d}",
            "uri": "",
            "sha256": "",
            "tokens": 1,
            "target_tokens": 1,
        }
        connection.execute(insert(schema.micro_steps).values(step))
    claim = {
        "batch": f"b{batch}",
        "micro_step": number,
        "attempt": attempt,
        "cell": cell,
        "boot_epoch": 1,
        "version": 0,
        "claimed_at": at,
        "done_at": done,
    }
    connection.execute(insert(schema.claims).values(claim))


def _move(connection: Connection, cell: int, direction: str, started: float, ended: float) -> None:
    values = {
        "transition": f"{cell}-{direction}-{started}",
        "run": "r",
        "cell": cell,
        "direction": direction,
        "started_at": started,
        "ended_at": ended,
        "result": "done",
        "steps": [],
        "figures": {},
    }
    connection.execute(insert(schema.transitions).values(values))


def _entry(connection: Connection, at: float, kind: str, cell: int | None = None, direction: str | None = None) -> None:
    values = {"run": "r", "at": at, "kind": kind, "cell": cell, "direction": direction, "reasons": [], "state": {}}
    connection.execute(insert(schema.ledger).values(values | {"token": str(at)}))


def _read(connection: Connection) -> Training:
    done = connection.execute(select(schema.batches).order_by(schema.batches.c.committed_at)).all()
    return read_training(connection, done)


def test_micro_steps_keep_their_own_sizes_and_order(connection: Connection) -> None:
    """The longest is 12 s, another was claimed ahead and waited, a third was lost and done again elsewhere."""
    _batch(connection, 0, 0.0, 40.0, [0])
    _claim(connection, 0, 0, 0, cell=0, at=0.0, done=12.0)
    _claim(connection, 0, 1, 0, cell=0, at=1.0, done=17.0)
    _claim(connection, 0, 2, 0, cell=1, at=0.0, done=30.0)
    _claim(connection, 0, 2, 0, cell=2, at=31.0, done=34.0, attempt=2)
    assert _read(connection).micro_steps == {"a/0000": (12.0, 5.0, 3.0)}


def test_what_the_control_plane_adds_to_a_step(connection: Connection) -> None:
    _group(connection, 0, ended=8.0, admitted=8.5)
    _group(connection, 1, ended=9.0, admitted=9.5)
    _batch(connection, 0, 10.0, 21.0, [0])
    _batch(connection, 1, 21.25, 40.0, [1])
    _claim(connection, 0, 0, 0, cell=0, at=10.0, done=14.0)
    _claim(connection, 0, 1, 0, cell=0, at=14.125, done=20.0)
    _claim(connection, 1, 0, 1, cell=0, at=22.0, done=38.0)
    found = _read(connection)
    assert found.admission_seconds == 0.5
    assert found.claim_seconds == 0.125
    assert found.update_seconds == pytest.approx((1.0 + 2.0) / 2)
    assert found.opening_seconds == 0.25
    assert found.pickup_seconds(read_moves(connection)) == 0.75


def test_waiting_for_a_group_is_no_cost_of_the_control_plane(connection: Connection) -> None:
    """The second batch opens before its group comes, and the cell's second micro-step is of a group that came late."""
    for group, at in enumerate((8.0, 15.0, 30.0)):
        _group(connection, group, ended=at, admitted=at)
    _batch(connection, 0, 10.0, 21.0, [0, 1])
    _batch(connection, 1, 22.0, 40.0, [2])
    _claim(connection, 0, 0, 0, cell=0, at=10.0, done=11.0)
    _claim(connection, 0, 1, 1, cell=0, at=15.5, done=20.0)
    _claim(connection, 1, 0, 2, cell=0, at=31.0, done=38.0)
    found = _read(connection)
    assert found.claim_seconds == 0.0
    assert found.pickup_seconds(read_moves(connection)) == 0.0


def test_a_move_lasts_from_its_decision_until_the_scheduler_looks_again(connection: Connection) -> None:
    _group(connection, 0, ended=8.0, admitted=8.0)
    _batch(connection, 0, 7.0, 40.0, [0])
    _entry(connection, 10.0, "move", cell=1, direction="to_training")
    _move(connection, 1, "to_training", 10.5, 12.0)
    _entry(connection, 12.25, "refuse", cell=2, direction="to_training")
    _claim(connection, 0, 0, 0, cell=1, at=13.0, done=30.0)
    _move(connection, 1, "to_rollout", 41.0, 43.0)
    moves = read_moves(connection)
    assert (moves.to_training_seconds, moves.to_rollout_seconds) == (2.25, 2.0)
    assert moves.arrivals == ((1, 12.25, 41.0),)
    assert moves.absences == ((1, 10.5, 43.0),)
    assert moves.back_within(40.0, 42.0)
    assert not moves.back_within(42.0, 50.0)
    assert _read(connection).join_seconds(moves) == 0.75


def test_a_cell_that_waits_for_its_first_group_has_long_joined(connection: Connection) -> None:
    _group(connection, 0, ended=20.0, admitted=20.5)
    _batch(connection, 0, 7.0, 40.0, [0])
    _move(connection, 1, "to_training", 10.0, 12.0)
    _claim(connection, 0, 0, 0, cell=1, at=20.75, done=30.0)
    assert _read(connection).join_seconds(read_moves(connection)) == 0.25
