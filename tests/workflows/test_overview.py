"""The table that the web UI shows of a run."""

from workflows.messages.fleet import CellRole
from workflows.overview import overview
from workflows.policy.state import BatchView, CellView, PolicyState

CELLS = (
    CellView(index=0, role=CellRole.TRAINING, slots=4),
    CellView(index=1, role=CellRole.TO_TRAINING, slots=4),
    CellView(index=2, role=CellRole.ROLLOUT, slots=4, serving=True),
    CellView(index=3, role=CellRole.ROLLOUT, slots=4),
)


def state(**changes) -> PolicyState:
    values = {"now": 0.0, "dispatched": 20, "launched": 16, "finished": 10, "cells": CELLS, "groups_per_step": 4}
    return PolicyState.model_validate({**values, "supply_fraction": 0.5, "hold_seconds": 2.0, **changes})


def rows(text: str) -> dict[str, str]:
    return dict(line.strip("| ").split(" | ", 1) for line in text.splitlines()[2:])


def test_it_says_how_the_run_stands():
    batch = BatchView(batch="r/batch/first/1", needed=3)
    text = overview(
        state(ready_unassigned=1, batch=batch), version=7, burst="first", waiting=["second", "third"], ready=2
    )
    assert rows(text) == {
        "burst": "first; waiting: second, third",
        "waterlevel": "10 (6 running, 4 queued) on 4 slots",
        "cells": "0 training (core), 1 to training, 2 rollout, 3 loading",
        "ready groups": "2, 1 unassigned; step 1 of first needs 3 more",
        "published version": "7",
        "executions": "20 dispatched, 16 launched, 10 finished",
    }


def test_who_is_late_is_named_and_why():
    """In one row of the table, whatever the words are."""
    late = {0: "it is the core; cell 1: take_core | attempt 1\nruns"}
    text = rows(overview(state(), version=0, burst=None, waiting=[], ready=0, late=late))
    assert text["late"] == "cell 0 is not gone at its deadline: it is the core; cell 1: take_core / attempt 1 runs"


def test_without_a_burst_nothing_is_needed():
    text = rows(overview(state(), version=0, burst=None, waiting=[], ready=0))
    assert (text["burst"], text["ready groups"]) == ("none", "0, 0 unassigned")
