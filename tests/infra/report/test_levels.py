"""Waterlevel and capacity over time."""

import numpy as np

from infra.report import levels
from infra.report.changes import Boot, Change, Entry, Roles


def entry(at: float, dispatched: int, finished: int) -> Entry:
    return Entry(f"t{at}", at, "refuse", None, (), dispatched=dispatched, finished=finished)


def test_between_two_entries_every_close_counts_once():
    steps = levels.waterlevel([entry(10, 8, 0), entry(20, 8, 3), entry(30, 16, 4)], [5, 12, 14, 19.9, 25, 31, 32])
    asked = np.array([9.0, 10, 13, 15, 19.95, 20, 26, 30, 33])
    assert levels.at(steps, asked).tolist() == [0, 8, 7, 6, 5, 5, 4, 12, 10]


def test_capacity_is_of_the_cells_in_rollout():
    changes = [Change("b0", 0, "boot", 0, 1, "done"), Change("b1", 1, "boot", 0, 2, "done")]
    changes += [Change("m", 1, "to_training", 5, 6, "done")]
    steps = levels.capacity(Roles(changes, [Boot(0, 0), Boot(1, 0)], 10), {0: 8, 1: 4})
    assert levels.at(steps, np.array([0.5, 1, 2, 5, 9])).tolist() == [0, 8, 12, 8, 8]


def test_slots_cover_the_work_while_w_is_at_most_their_number():
    level = levels.waterlevel([entry(0, 10, 0)], [3, 4, 5])
    assert levels.free(level, (np.array([0.0, 6.0]), np.array([8.0, 0.0])), 9.0).tolist() == [[4.0, 6.0]]
    assert levels.free(levels.waterlevel([], []), (np.empty(0), np.empty(0)), 9.0).tolist() == []
