"""Where cells were, from their boots and their transitions."""

import pytest

from infra.report.changes import Boot, Change, Entry, Roles, roles_text, seen


def change(direction: str, start: float, end: float, result: str = "done", cell: int = 1) -> Change:
    return Change(f"{direction}-{cell}-{start}", cell, direction, start, end, result)


def roles_of(roles: Roles, cell: int = 1) -> list[tuple[str, float, float]]:
    return [(span.role, span.begin, span.end) for span in roles.spans[cell]]


BOOTED = [change("boot", 1, 2)]


def test_a_cell_there_and_back():
    changes = [*BOOTED, change("to_training", 5, 6), change("to_rollout", 9, 11), change("publish", 12, 13)]
    roles = Roles(changes, [Boot(1, 0)], 20)
    assert roles_of(roles) == [
        ("starting", 0, 2),
        ("rollout", 2, 5),
        ("to_training", 5, 6),
        ("training", 6, 9),
        ("to_rollout", 9, 11),
        ("rollout", 11, 12),
        ("publishing", 12, 13),
        ("rollout", 13, 20),
    ]
    assert roles.at(6) == {1: "training"}
    assert roles.before(6) == {1: "to_training"}
    assert roles.at(-1) == roles.before(0) == {}


@pytest.mark.parametrize(
    ("result", "role"),
    [("rolled_back", "rollout"), ("parked", "parked"), ("superseded", "starting"), ("rebooted", "starting")],
)
def test_a_move_that_fails(result, role):
    roles = Roles([*BOOTED, change("to_training", 5, 6, result)], [Boot(1, 0)], 9)
    assert roles.at(8) == {1: role}


def test_a_cell_that_leaves_the_fleet():
    roles = Roles([*BOOTED, change("retire", 5, 6)], [Boot(1, 0)], 9)
    assert [role for role, _, _ in roles_of(roles)] == ["starting", "rollout", "retiring", "retired"]


def test_a_cell_that_takes_over_as_the_core_does_what_it_did():
    spans = roles_of(Roles([change("to_training", 1, 2), change("take_over", 4, 6)], [], 9))
    assert [role for role, _, _ in spans] == ["to_training", "training"]


def test_a_boot_in_the_middle_of_a_move_counts_for_more_than_its_end():
    roles = Roles([*BOOTED, change("to_training", 5, 8), change("boot", 8, 9)], [Boot(1, 0), Boot(1, 6)], 10)
    assert roles_of(roles)[2:] == [("to_training", 5, 6), ("starting", 6, 9), ("rollout", 9, 10)]


def test_the_newest_role_is_known_though_nothing_follows():
    roles = Roles([*BOOTED, change("to_training", 5, 6)], [Boot(1, 0)], 6)
    assert roles.at(6) == {1: "training"}


def test_where_a_decision_sends_its_cells():
    def heading(kind: str, cell: int | None, direction: str | None = None) -> str:
        return Entry("t", 0.0, kind, cell, ("gain",), direction=direction).heading

    assert heading("move", 1) == heading("move", 1, "to_training") == "to_training"
    assert (heading("return", 1), heading("return", 1, "retire")) == ("to_rollout", "retire")
    assert heading("move", None) == heading("move", None, "to_training") == "slots"
    assert heading("refuse", 1, "to_training") == ""


def test_topologies_in_words():
    found = {0: "training", 1: "rollout", 2: "rollout", 3: "training", 4: "rollout"}
    assert roles_text(found) == "rollout 1-2,4; training 0,3"


def test_what_the_policy_saw_in_short():
    cells = [
        {"index": 0, "role": "training", "slots": 8, "serving": False},
        {"index": 1, "role": "rollout", "slots": 4, "serving": True},
    ]
    state = {"dispatched": 9, "launched": 7, "finished": 3, "standalone_slots": 2, "cells": cells, "now": 1.0}
    found = seen(state)
    assert (found["dispatched"], found["launched"], found["finished"], found["capacity"]) == (9, 7, 3, 6)
    assert found["topology"] == "rollout 1; training 0"
    assert seen({}) == {"dispatched": None, "launched": None, "finished": None}
