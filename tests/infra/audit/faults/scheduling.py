"""Faults in counts, membership and moves (invariants 1 and 2)."""

from infra.records import schema
from tests.infra.audit.planting import BATCH, LAST, VICTIM, change_member, change_state, plants
from tests.infra.audit.recording import T0, SyntheticRun, batch_id

# 1: counts, groups, membership


@plants("counts-out-of-order")
def more_finished_than_launched(run: SyntheticRun) -> None:
    change_state(run, "refuse", launched=5)


@plants("counts-out-of-order")
def negative_count(run: SyntheticRun) -> None:
    change_state(run, "dispatch", finished=-1)


@plants("counter-went-back")
def finished_counted_down(run: SyntheticRun) -> None:
    change_state(run, "move", cell=1, finished=9)


@plants("finished-exceeds-executions")
def finished_counted_twice(run: SyntheticRun) -> None:
    for entry in range(1, 11):
        state = run.row(schema.ledger, entry=entry)["state"]
        more = {name: state[name] + 20 for name in ("dispatched", "launched", "finished")}
        run.change(schema.ledger, {"entry": entry}, state=state | more)


@plants("group-incomplete")
def member_left_off_its_group(run: SyntheticRun) -> None:
    members = run.row(schema.groups, group_id="first/0002")["members"]
    run.change(schema.groups, {"group_id": "first/0002"}, members=members[:2])


@plants("group-incomplete")
def admitted_before_the_last_had_closed(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0002"}, admitted_at=T0 + 27)


@plants("execution-in-two-groups")
def member_borrowed_from_another_group(run: SyntheticRun) -> None:
    change_member(run, "first/0002", 0, execution=VICTIM)


@plants("sequence-repeated")
def same_place_given_twice(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "second/0003"}, sequence=6)


@plants("group-in-two-batches")
def group_consumed_again(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": LAST}, groups=["first/0000", "second/0000", "second/0001"])


@plants("batch-names-unknown-group")
def group_nobody_admitted(run: SyntheticRun) -> None:
    run.change(schema.batches, {"batch": LAST}, groups=["second/0000", "second/0001", "second/0009"])


@plants("group-batch-disagrees")
def group_says_another_batch(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0001"}, batch=batch_id("first", 1))


@plants("membership-out-of-order")
def members_swapped(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0001"}, sequence=2)
    run.change(schema.groups, {"group_id": "first/0002"}, sequence=1)


@plants("membership-skips")
def surplus_group_thrown_away(run: SyntheticRun) -> None:
    run.change(schema.groups, {"group_id": "first/0000"}, batch=None, consumed_version=None)
    run.change(schema.batches, {"batch": BATCH}, groups=["first/0001"])


# 2: role changes


@plants("move-over-capacity")
def moved_with_too_much_work_out(run: SyntheticRun) -> None:
    change_state(run, "move", dispatched=19)


@plants("move-over-capacity")
def moved_counting_its_own_slots(run: SyntheticRun) -> None:
    state = run.row(schema.ledger, kind="move", cell=1)["state"]
    for cell in state["cells"]:
        cell["slots"] = 4 if cell["index"] == 1 else 0
    change_state(run, "move", cell=1, cells=state["cells"], dispatched=15, launched=15)


@plants("waterlevel-below-running")
def move_forgot_running_executions(run: SyntheticRun) -> None:
    change_state(run, "move", now=T0 + 24.5, finished=12)


@plants("capacity-counts-absent-cell")
def core_in_training_counted_as_serving(run: SyntheticRun) -> None:
    cells = run.row(schema.ledger, kind="move", cell=1)["state"]["cells"]
    cells[0]["serving"] = True
    change_state(run, "move", cell=1, cells=cells)


@plants("move-breaks-prefix")
def satellite_left_before_the_core(run: SyntheticRun) -> None:
    cells = run.row(schema.ledger, kind="move", cell=1)["state"]["cells"]
    cells[0] |= {"role": "rollout", "serving": True}
    change_state(run, "move", cell=1, cells=cells)


@plants("move-over-bounds")
def async_trained_more_cells_than_the_fleet_allows(run: SyntheticRun) -> None:
    bounds = {"min_rollout_cells": 0, "min_training_cells": 0, "max_training_cells": 1}
    change_state(run, "move", cell=1, bounds=bounds)
    run.change(schema.ledger, {"kind": "move", "cell": 1}, policy="async")


@plants("move-over-bounds")
def waterlevel_left_too_few_to_rollout(run: SyntheticRun) -> None:
    bounds = {"min_rollout_cells": 2, "min_training_cells": 0, "max_training_cells": None}
    change_state(run, "move", cell=1, bounds=bounds)


@plants("move-over-bounds")
def frozen_split_left_too_few_to_rollout(run: SyntheticRun) -> None:
    move = run.row(schema.ledger, kind="move", cell=1)
    bounds = {"min_rollout_cells": 2, "min_training_cells": 0, "max_training_cells": None}
    change_state(run, "move", cell=1, bounds=bounds)
    run.change(schema.ledger, {"kind": "refuse"}, kind="safe_mode", reasons=["entered", "operator: a test"])
    assert run.row(schema.ledger, kind="safe_mode")["entry"] < move["entry"]


@plants("move-of-absent-cell")
def moved_while_another_move_was_under_way(run: SyntheticRun) -> None:
    change_state(run, "move", cell=1, move_under_way=True)


@plants("move-of-absent-cell")
def moved_a_cell_that_was_returning(run: SyntheticRun) -> None:
    cells = run.row(schema.ledger, kind="move", cell=1)["state"]["cells"]
    cells[1] |= {"role": "to_rollout", "serving": False}
    change_state(run, "move", cell=1, cells=cells)


@plants("transitions-overlap")
def two_cells_leaving_at_once(run: SyntheticRun) -> None:
    run.change(schema.transitions, {"cell": 0, "direction": "to_training", "started_at": T0 + 30.1}, ended_at=T0 + 34)


@plants("transitions-overlap")
def satellite_leaving_inside_a_long_departure(run: SyntheticRun) -> None:
    run.change(
        schema.transitions, {"cell": 1, "direction": "to_training", "started_at": T0 + 33.1}, started_at=T0 + 30.5
    )


@plants("transition-without-move")
def cell_left_without_a_decision(run: SyntheticRun) -> None:
    run.remove(schema.ledger, kind="move", cell=1, at=T0 + 33)


@plants("state-unreadable")
def move_without_its_state(run: SyntheticRun) -> None:
    run.change(schema.ledger, {"kind": "move", "cell": 0}, state={})
