"""A recorded run as a scenario: what is read from its database, and what the policies make of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from infra.records import schema
from infra.records.database import open_database
from infra.settings.fleet import Fleet
from infra.simulator.compare import compare
from infra.simulator.recorded import _slot_gap, read_run
from workflows.messages.errors import InvalidInput
from workflows.messages.fleet import CellSpec

FLEET = Fleet(cells=tuple(CellSpec(index=index, slots=2) for index in range(3)))
START = 1000.0
GROUPS, SIZE, STEPS = 2, 2, 2
"""Two bursts of two steps of two groups of two executions; the first burst carries one batch over."""


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'records.db'}", create=True)
    with engine.begin() as connection:
        place = 0
        for burst, groups, start in (("a", 6, START), ("b", 4, START + 100)):
            for group in range(groups):
                for member in range(SIZE):
                    place += 1
                    _add_execution(connection, burst, group, member, start + place * 0.5, 10.0 + place)
            for step in range(STEPS):
                _add_batch(connection, burst, step, start + 40 + 20 * step)
        for direction, seconds in (("to_training", 2.0), ("to_training", 4.0), ("to_rollout", 1.0)):
            _add_move(connection, direction, seconds)
        seen = {"supply_fraction": 0.25, "hold_seconds": 7.0}
        connection.execute(
            insert(schema.ledger).values(run="r", at=START, kind="refuse", cell=0, reasons=[], state=seen, token="1")
        )
    yield engine
    engine.dispose()


def _add_execution(connection, burst: str, group: int, member: int, start: float, seconds: float) -> None:
    name = f"r/execution/{burst}/{group}/{member}"
    connection.execute(
        insert(schema.executions).values(
            execution=name,
            run="r",
            burst=burst,
            group_index=group,
            member=member,
            purpose="train",
            task="t",
            harness="h",
            client="thin",
            seed=0,
            dispatch_version=0,
            sampling={},
            call_limit=8,
            token_sha256=name,
            attempt=1,
            state="closed",
            workspace="",
            prepared_at=start,
            ended_at=start + seconds,
            closed_at=start + seconds,
            model_calls=2,
        )
    )
    # Two calls of which half of the second lies within the first: three units of model time, not four.
    for sequence, (begin, end) in enumerate(((1.0, 3.0), (2.0, 4.0))):
        connection.execute(
            insert(schema.calls).values(
                call=f"{burst}{group}{member}{sequence}",
                execution=name,
                attempt=1,
                sequence=sequence,
                dialect="chat",
                role="main",
                state="finished",
                started_at=start + begin,
                ended_at=start + end,
                input_tail=b"",
                prompt_tokens=0,
            )
        )


def _add_batch(connection, burst: str, step: int, opened: float) -> None:
    name = f"r/batch/{burst}/{step}"
    connection.execute(
        insert(schema.batches).values(
            batch=name,
            run="r",
            burst=burst,
            step=step,
            opened_at=opened,
            window_closed_at=opened + 10,
            committed_at=opened + 14,
            version_before=step,
            groups=[f"{burst}/{2 * step + group:04d}" for group in range(GROUPS)],
        )
    )
    for group in range(GROUPS):
        connection.execute(
            insert(schema.micro_steps).values(
                batch=name,
                micro_step=group,
                group_id=f"{burst}/{2 * step + group:04d}",
                uri="",
                sha256="",
                tokens=1,
                target_tokens=1,
            )
        )
        # The first attempt was lost; both are claimed at once, and the cell computes one after the other.
        for attempt, seconds in ((1, 100.0), (2, 6.0 * (group + 1))):
            connection.execute(
                insert(schema.claims).values(
                    batch=name,
                    micro_step=group,
                    attempt=attempt,
                    cell=0,
                    boot_epoch=1,
                    version=0,
                    claimed_at=opened,
                    done_at=opened + seconds,
                )
            )


def _add_move(connection, direction: str, seconds: float) -> None:
    connection.execute(
        insert(schema.transitions).values(
            transition=f"{direction}-{seconds}",
            run="r",
            cell=1,
            direction=direction,
            started_at=START,
            ended_at=START + seconds,
            result="done",
            steps=[],
            figures={},
        )
    )


def test_numbers_of_the_run_are_read(recorded: Engine) -> None:
    run = read_run(recorded, FLEET)
    told = run.scenario
    assert (told.groups_per_step, told.executions_per_group, told.steps, told.burst_steps) == (GROUPS, SIZE, 4, 2)
    assert (told.cells, told.engines.slots, told.engines.slowdown) == (3, 6, 0.0)
    assert told.staleness == 1.0 + 0.5
    assert (told.supply_fraction, told.hold_seconds) == (0.25, 7.0)
    assert (told.transitions.to_training_seconds, told.transitions.to_rollout_seconds) == (3.0, 1.0)
    assert told.training.step_seconds == pytest.approx(6.0 * GROUPS / 3)
    # The last micro-step ends 2 s before the commit, the next step opens 6 s after it.
    assert told.training.update_seconds == pytest.approx(2.0)
    assert told.training.opening_seconds == pytest.approx(6.0)
    # The first burst's last update at 74, the next one's first launch at 106.5; batches open at 140.
    assert told.transitions.boundary_seconds == pytest.approx(106.5 - 74.0)
    assert told.transitions.first_batch_seconds == pytest.approx(140.0 - 106.5)
    assert run.groups == 10
    assert run.seconds == pytest.approx(START + 100 + 60 + 14 - (START + 0.5))


def test_starting_executions_takes_what_the_first_wave_took(recorded: Engine) -> None:
    """Six slots fill half a second apart; what a slot then stands empty is another matter."""
    run = read_run(recorded, FLEET)
    assert run.scenario.engines.launch_seconds == pytest.approx(0.5)
    assert run.scenario.training.micro_steps_per_group == 1


@pytest.mark.parametrize(
    ("admitted", "backlog"),
    [
        ((2.1, 20.0), 0.0),  # at once, and the second group has not ended yet
        ((12.0, 12.25), 0.0),  # late, but nothing else waited
        ((18.0, 18.25), 17.75),  # another one ended meanwhile, and waited too
    ],
)
def test_a_control_plane_that_only_launched_is_behind_until_none_waits(
    recorded: Engine, admitted: tuple[float, float], backlog: float
) -> None:
    """Six slots are filled from 0.5 to 3 s; the first group has ended at 2 s, the second one ends at 16 s."""
    with recorded.begin() as connection:
        table = schema.executions
        for group, at in ((0, 2.0), (1, 16.0)):
            one = (table.c.burst == "a") & (table.c.group_index == group)
            connection.execute(table.update().where(one).values(ended_at=START + at))
            values = {"run": "r", "burst": "a", "admitted_version": 0, "valid": 2, "members": []}
            values |= {"group_id": f"a/{group:04d}", "group_index": group, "sequence": group}
            connection.execute(insert(schema.groups).values(values | {"admitted_at": START + admitted[group]}))
    assert read_run(recorded, FLEET).scenario.engines.backlog_seconds == pytest.approx(backlog)


def test_a_slot_of_a_cell_that_trains_does_not_wait_for_executions() -> None:
    """Two slots serve, two are away: each execution of 10 s follows the one before it after 1 s."""
    members = {(0.0, "a", group): [(10.0, 0.0, 11.0 * (group // 2))] for group in range(8)}
    away = [(2, -1.0, float("inf"))]
    assert _slot_gap(members, 4, away) == pytest.approx(1.0)
    assert _slot_gap(members, 2, []) == pytest.approx(1.0)
    assert _slot_gap(members, 4, []) > 5.0  # what it would be if they had served


def test_groups_weigh_what_they_trained(recorded: Engine) -> None:
    with recorded.begin() as connection:
        table = schema.claims
        connection.execute(table.update().where(table.c.batch == "r/batch/a/0", table.c.micro_step == 0).values(cell=1))
        connection.execute(
            table.update()
            .where(table.c.batch == "r/batch/a/0", table.c.micro_step == 1, table.c.attempt == 2)
            .values(done_at=START + 40 + 18.0)
        )
    run = read_run(recorded, FLEET)
    light, heavy = run.workload.group(0)[0].weight, run.workload.group(1)[0].weight
    assert heavy == pytest.approx(3 * light)


def test_model_and_tool_time_come_from_the_calls(recorded: Engine) -> None:
    run = read_run(recorded, FLEET)
    first = run.workload.group(0)
    own = [work.seconds for work in first]
    assert own[1] - own[0] == pytest.approx(1.0)
    assert own[0] >= 11.0
    assert [work.model_share for work in first] == [round(3 / seconds, 1) for seconds in own]


def test_every_policy_can_be_asked_what_it_would_have_done(recorded: Engine) -> None:
    run = read_run(recorded, FLEET)
    results = compare(run.scenario, run.workload)
    assert len(results) == 5
    assert all(len(result.outcome.steps) == 4 for result in results)


def test_run_without_a_batch_is_refused(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'empty.db'}", create=True)
    with pytest.raises(InvalidInput, match="no committed batch"):
        read_run(engine, FLEET)
    engine.dispose()
