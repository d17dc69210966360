"""The waterlevel policy under any order of events: its rules hold at every decision, and every burst ends."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.workflows.policy.model import ModelCell, SchedulerModel
from workflows.messages.fleet import CellRole

ROUNDS = 3000
"""Rounds in which a burst must end once nothing is broken any more; each round finishes an execution if one runs."""


class AnyOrder(RuleBasedStateMachine):
    """Events in any order. After each of them the policy is asked, as the Scheduler does."""

    model: SchedulerModel

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

    @rule(which=st.integers(0, 50), times=st.integers(1, 6))
    def executions_finish(self, which: int, times: int) -> None:
        for _ in range(times):
            self.model.launch()
            if self.model.running:
                self.model.finish(which)
                self.model.evaluate()

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.1, 1.0, 2.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(seconds)

    @rule()
    def timer_of_the_hold_fires(self) -> None:
        if self.model.last is not None and self.model.last.recheck_seconds is not None:
            self.model.pass_time(self.model.last.recheck_seconds)

    @rule(seconds=st.sampled_from([0.01, 1.0, 3600.0]))
    def clock_is_set_back(self, seconds: float) -> None:
        self.model.clock -= seconds

    @precondition(lambda self: self.model.in_role(CellRole.TO_TRAINING))
    @rule(role=st.sampled_from([CellRole.TRAINING, CellRole.TRAINING, CellRole.ROLLOUT, CellRole.PARKED]))
    def departure_ends(self, role: CellRole) -> None:
        """Done, rolled back or parked."""
        self.model.cells[self.model.in_role(CellRole.TO_TRAINING)[0]].role = role

    @precondition(lambda self: self.model.in_role(CellRole.TO_ROLLOUT, CellRole.LOST, CellRole.PARKED))
    @rule(which=st.integers(0, 4))
    def cell_comes_back(self, which: int) -> None:
        back = self.model.in_role(CellRole.TO_ROLLOUT, CellRole.LOST, CellRole.PARKED)
        self.model.cells[back[which % len(back)]].role = CellRole.ROLLOUT

    @rule(which=st.integers(0, 4))
    def cell_is_lost(self, which: int) -> None:
        self.model.cells[which % len(self.model.cells)].role = CellRole.LOST

    @rule()
    def core_is_lost(self) -> None:
        self.model.cells[0].role = CellRole.LOST

    @rule()
    def core_parks(self) -> None:
        self.model.cells[0].role = CellRole.PARKED

    @rule(rounds=st.integers(1, 8))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            settle(self.model)

    @precondition(lambda self: self.model.may_assign)
    @rule(times=st.integers(1, 4))
    def groups_are_claimed(self, times: int) -> None:
        for _ in range(times):
            if self.model.may_assign:
                self.model.assign()

    @precondition(lambda self: self.model.may_commit)
    @rule()
    def batch_is_committed(self) -> None:
        self.model.commit()

    @invariant()
    def policy_is_asked(self) -> None:
        if hasattr(self, "model"):
            self.model.evaluate()

    def teardown(self) -> None:
        """Whatever happened before: with every cell back, the burst ends by executions ending alone."""
        if not hasattr(self, "model"):
            return
        model, goal = self.model, self.model.bursts + 1
        for index in model.in_role(CellRole.LOST, CellRole.PARKED):
            model.cells[index].role = CellRole.ROLLOUT
        for _ in range(ROUNDS):
            if model.bursts == goal:
                return
            settle(model)
        raise AssertionError(f"the burst does not end: {model}")


def settle(model: SchedulerModel) -> None:
    """One round of everything that may happen without a fault."""
    for index in model.in_role(CellRole.TO_TRAINING):
        model.cells[index].role = CellRole.TRAINING
    for index in model.in_role(CellRole.TO_ROLLOUT):
        model.cells[index].role = CellRole.ROLLOUT
    model.launch()
    if model.running:
        model.finish(0)
    model.evaluate()
    model.pass_time(model.hold_seconds + 0.5)
    model.evaluate()
    if model.may_assign:
        model.assign()
        model.evaluate()
    if model.may_commit:
        model.commit()


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestAnyOrder = pytest.mark.timeout(300)(AnyOrder.TestCase)  # a failure takes its time to be made small


def test_a_core_lost_at_the_end_of_a_batch_does_not_stop_the_burst() -> None:
    """Every group is assigned when the core is lost: nothing is left to be supplied, yet it must come back."""
    model = SchedulerModel([ModelCell(2), ModelCell(2)], 2, 1, 1, 0.0, 0.5, 2.0)
    model.open_burst()
    model.launch()
    model.finish(0)
    model.finish(0)
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
