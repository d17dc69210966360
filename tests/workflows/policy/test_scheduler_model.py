"""The waterlevel policy under any order of events: its rules hold at every decision, and every burst ends."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.workflows.policy.machine import EventsInAnyOrder, settle
from tests.workflows.policy.model import ModelCell, SchedulerModel
from workflows.messages.fleet import CellRole

ROUNDS = 3000
"""Rounds in which a burst must end once nothing is broken any more; each round finishes an execution if one runs."""


class AnyOrder(EventsInAnyOrder):
    """`waterlevel`: clocks that are set back, and a core that fails, among the events."""

    rounds = ROUNDS

    @initialize(
        slots=st.lists(st.integers(1, 4), min_size=1, max_size=5),
        never_train=st.booleans(),
        groups=st.integers(1, 4),
        size=st.integers(1, 3),
        steps=st.integers(1, 3),
        carry_over=st.sampled_from([0.0, 0.5, 1.0]),
        fraction=st.sampled_from([0.0, 0.28, 0.5, 1.0]),
        hold_seconds=st.sampled_from([0.0, 0.1, 2.0]),
    )
    def start(self, slots: list[int], never_train: bool, **sizes: Any) -> None:
        cells = [ModelCell(count) for count in slots]
        if never_train and len(cells) > 1:
            cells[-1].trains = False
        self.model = SchedulerModel(
            cells,
            groups_per_step=sizes["groups"],
            group_size=sizes["size"],
            steps=sizes["steps"],
            carry_over=sizes["carry_over"],
            supply_fraction=sizes["fraction"],
            hold_seconds=sizes["hold_seconds"],
        )
        self.model.open_burst()
        self.model.launch()

    @rule()
    def timer_of_the_hold_fires(self) -> None:
        if self.model.last is not None and self.model.last.recheck_seconds is not None:
            self.model.pass_time(self.model.last.recheck_seconds)

    @rule(seconds=st.sampled_from([0.01, 1.0, 3600.0]))
    def clock_is_set_back(self, seconds: float) -> None:
        self.model.clock -= seconds

    @rule()
    def core_is_lost(self) -> None:
        self.model.cells[0].role = CellRole.LOST

    @rule()
    def core_parks(self) -> None:
        self.model.cells[0].role = CellRole.PARKED


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestAnyOrder = pytest.mark.timeout(300)(AnyOrder.TestCase)  # a failure takes its time to be made small


def test_a_core_lost_at_the_end_of_a_batch_does_not_stop_the_burst() -> None:
    """Every group is assigned when the core is lost: nothing is left to be supplied, yet it must come back."""
    model = SchedulerModel([ModelCell(2), ModelCell(2)], 2, 1, 1, 0.0, 0.5, 2.0)
    model.open_burst()
    model.launch()
    for _ in range(2):
        model.finish(0)
        model.admit()
    model.cells[0].role = CellRole.TRAINING
    model.assign()
    model.assign()
    model.cells[0].role = CellRole.LOST
    model.evaluate()
    model.cells[0].role = CellRole.ROLLOUT
    for _ in range(3):
        settle(model)
    assert model.bursts == 1


def test_one_cell_alternates_and_every_burst_ends() -> None:
    model = SchedulerModel([ModelCell(3)], 2, 3, 2, 1.0, 0.5, 2.0)
    model.open_burst()
    for _ in range(ROUNDS):
        if model.bursts == 3:
            break
        settle(model)
        if model.in_role(CellRole.TRAINING, CellRole.TO_TRAINING):
            assert model.running == []
    assert model.bursts == 3
