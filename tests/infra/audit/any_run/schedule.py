"""Faults in counts, membership, moves, and what was lost (invariants 1, 2 and 9)."""

from infra.records import schema
from tests.infra.audit.any_run.subjects import (
    COUNTERS,
    batch,
    batches,
    change,
    change_cell,
    change_members,
    change_state,
    departures,
    entries,
    first,
    group,
    moves,
    plants,
    rows,
    satellite_move,
)
from tests.infra.audit.recording import SyntheticRun


@plants("counts-out-of-order")
def more_launched_than_dispatched(run: SyntheticRun) -> None:
    entry = entries(run)[-1]
    change_state(run, entry, launched=entry["state"]["dispatched"] + 1)


@plants("counter-went-back")
def dispatched_counted_down(run: SyntheticRun) -> None:
    entry = entries(run)[-1]
    change_state(run, entry, **{name: entry["state"][name] - 3 for name in COUNTERS})


@plants("finished-exceeds-executions")
def finished_counted_twice(run: SyntheticRun) -> None:
    for entry in entries(run):
        change_state(run, entry, **{name: entry["state"][name] + 1000 for name in COUNTERS})


@plants("execution-closed-twice")
def one_execution_closed_twice(run: SyntheticRun) -> None:
    """Its second report was counted too, while others were still running."""
    closed = sorted(row["closed_at"] for row in rows(run, schema.executions))
    entry = first([row for row in entries(run) if row["state"]["now"] < closed[-1] - 1], "entry before the last close")
    done = sum(moment <= entry["state"]["now"] + 0.25 for moment in closed)
    change_state(run, entry, finished=done + 1, launched=max(done + 1, entry["state"]["launched"]))


@plants("group-incomplete")
def member_left_off_its_group(run: SyntheticRun) -> None:
    change(run, schema.groups, group(run), members=group(run)["members"][:-1])


@plants("group-incomplete")
def admitted_before_the_last_had_closed(run: SyntheticRun) -> None:
    change(run, schema.groups, group(run), admitted_at=group(run)["admitted_at"] - 3600)


@plants("execution-in-two-groups")
def member_borrowed_from_another_group(run: SyntheticRun) -> None:
    one, other = rows(run, schema.groups, "sequence")[:2]
    change_members(run, other, 0, execution=one["members"][0]["execution"])


@plants("sequence-repeated")
def same_place_given_twice(run: SyntheticRun) -> None:
    one, other = rows(run, schema.groups, "sequence")[:2]
    change(run, schema.groups, other, sequence=one["sequence"])


@plants("group-in-two-batches")
def group_consumed_again(run: SyntheticRun) -> None:
    one, *_, last = batches(run)
    change(run, schema.batches, last, groups=[one["groups"][0], *last["groups"]])


@plants("batch-names-unknown-group")
def group_nobody_admitted(run: SyntheticRun) -> None:
    change(run, schema.batches, batch(run), groups=[*batch(run)["groups"], "nobody/0000"])


@plants("group-batch-disagrees")
def group_says_another_batch(run: SyntheticRun) -> None:
    change(run, schema.groups, group(run), batch=batches(run)[-1]["batch"])


@plants("membership-out-of-order")
def groups_entered_backwards(run: SyntheticRun) -> None:
    change(run, schema.batches, batch(run), groups=batch(run)["groups"][::-1])


@plants("membership-skips")
def surplus_group_thrown_away(run: SyntheticRun) -> None:
    gone, kept = group(run), batch(run)
    change(run, schema.groups, gone, batch=None, consumed_version=None)
    change(run, schema.batches, kept, groups=[name for name in kept["groups"] if name != gone["group_id"]])


@plants("move-over-capacity")
def moved_with_too_much_work_out(run: SyntheticRun) -> None:
    move = first(moves(run), "move")
    change_state(run, move, dispatched=move["state"]["dispatched"] + 1000)


@plants("waterlevel-below-running")
def move_forgot_running_executions(run: SyntheticRun) -> None:
    executions = rows(run, schema.executions)

    def at_work(moment: float) -> bool:
        return any(row["prepared_at"] + 0.3 < moment < row["closed_at"] - 0.3 for row in executions)

    move = first([row for row in moves(run) if at_work(row["state"]["now"])], "move while executions were running")
    everything = move["state"]["dispatched"]
    change_state(run, move, launched=everything, finished=everything)


@plants("capacity-counts-absent-cell")
def core_in_training_counted_as_serving(run: SyntheticRun) -> None:
    change_cell(run, satellite_move(run), 0, serving=True)


@plants("move-breaks-prefix")
def satellite_left_before_the_core(run: SyntheticRun) -> None:
    change_cell(run, satellite_move(run), 0, role="rollout", serving=True)


@plants("move-over-bounds")
def async_trained_more_cells_than_the_fleet_allows(run: SyntheticRun) -> None:
    move = satellite_move(run)
    change_state(run, move, bounds={"min_rollout_cells": 0, "min_training_cells": 0, "max_training_cells": 1})
    change(run, schema.ledger, move, policy="async")


@plants("move-of-absent-cell")
def moved_while_another_move_was_under_way(run: SyntheticRun) -> None:
    change_state(run, first(moves(run), "move"), move_under_way=True)


@plants("transitions-overlap")
def two_cells_leaving_at_once(run: SyntheticRun) -> None:
    one, other = departures(run)[:2]
    change(run, schema.transitions, one, ended_at=other["started_at"] + 1)


@plants("transition-without-move")
def cell_left_without_a_decision(run: SyntheticRun) -> None:
    run.remove(schema.ledger, entry=first(moves(run), "move")["entry"])


@plants("state-unreadable")
def move_without_its_state(run: SyntheticRun) -> None:
    change(run, schema.ledger, first(moves(run), "move"), state={})


@plants("execution-not-closed")
def execution_never_closed(run: SyntheticRun) -> None:
    change(run, schema.executions, rows(run, schema.executions)[0], closed_at=None)


@plants("execution-lost")
def dispatched_and_never_seen_again(run: SyntheticRun) -> None:
    entry = entries(run)[-1]
    change_state(run, entry, dispatched=entry["state"]["dispatched"] + 1)
