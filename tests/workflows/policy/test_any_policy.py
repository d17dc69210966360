"""Every policy under any order of events: counts are exact, moves are possible, one at a time, and every burst ends."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.workflows.policy.any_policy import AnyPolicyModel
from tests.workflows.policy.model import ModelCell
from tests.workflows.policy.test_scheduler_model import settle
from workflows.messages.fleet import CellRole
from workflows.policy.registry import POLICIES
from workflows.policy.staleness import carry_over_for, expected_staleness
from workflows.policy.state import Bounds

ROUNDS = 600
"""Rounds in which a burst must end once nothing is broken any more."""


class AnyPolicy(RuleBasedStateMachine):
    """Events in any order, dropped groups, parked and lost cells, late cores and safe mode among them."""

    model: AnyPolicyModel

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        slots=st.lists(st.integers(1, 4), min_size=1, max_size=5),
        groups=st.integers(1, 4),
        size=st.integers(1, 3),
        steps=st.integers(1, 3),
        carry_over=st.sampled_from([0.0, 0.5, 1.0]),
        fraction=st.sampled_from([0.0, 0.5, 1.0]),
        split=st.integers(1, 4),
        streaming=st.booleans(),
        fewest=st.integers(0, 1),
        most=st.sampled_from([None, 2]),
    )
    def start(self, policy: str, slots: list[int], **sizes: Any) -> None:
        self.model = AnyPolicyModel(
            [ModelCell(count) for count in slots],
            groups_per_step=sizes["groups"],
            group_size=sizes["size"],
            steps=sizes["steps"],
            carry_over=sizes["carry_over"],
            supply_fraction=sizes["fraction"],
            hold_seconds=2.0,
            policy=policy,
            split=sizes["split"],
            streaming=sizes["streaming"],
            bounds=Bounds(min_rollout_cells=min(sizes["fewest"], len(slots) - 1), max_training_cells=sizes["most"]),
        )
        self.model.open_burst()
        self.model.launch()

    @rule(which=st.integers(0, 50), times=st.integers(1, 6))
    def executions_end(self, which: int, times: int) -> None:
        """By themselves or terminated: either way once."""
        for _ in range(times):
            self.model.launch()
            if self.model.running:
                self.model.finish(which)
                self.model.evaluate()

    @precondition(lambda self: self.model.ready and self.model.dropped < 10)
    @rule()
    def group_is_dropped(self) -> None:
        self.model.drop()

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(seconds)

    @precondition(lambda self: self.model.in_role(CellRole.TO_TRAINING))
    @rule(role=st.sampled_from([CellRole.TRAINING, CellRole.TRAINING, CellRole.ROLLOUT, CellRole.PARKED]))
    def departure_ends(self, role: CellRole) -> None:
        self.model.cells[self.model.in_role(CellRole.TO_TRAINING)[0]].role = role

    @precondition(lambda self: self.model.in_role(CellRole.TO_ROLLOUT, CellRole.LOST, CellRole.PARKED))
    @rule(which=st.integers(0, 4))
    def cell_comes_back(self, which: int) -> None:
        back = self.model.in_role(CellRole.TO_ROLLOUT, CellRole.LOST, CellRole.PARKED)
        self.model.cells[back[which % len(back)]].role = CellRole.ROLLOUT

    @rule(which=st.integers(0, 4), role=st.sampled_from([CellRole.LOST, CellRole.PARKED]))
    def cell_fails(self, which: int, role: CellRole) -> None:
        self.model.cells[which % len(self.model.cells)].role = role

    @rule(on=st.booleans())
    def operator_freezes_or_releases(self, on: bool) -> None:
        self.model.freeze(on=on)

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

    @rule(rounds=st.integers(1, 8))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            settle(self.model)

    @invariant()
    def policy_is_asked(self) -> None:
        if hasattr(self, "model"):
            self.model.evaluate()

    def teardown(self) -> None:
        """Whatever happened before, and in safe mode too: the burst ends by executions ending alone."""
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


AnyPolicy.TestCase.settings = settings(max_examples=80, stateful_step_count=25)
TestAnyPolicy = pytest.mark.timeout(300)(AnyPolicy.TestCase)


def run_of(policy: str, *, cells: int = 3, **changes: Any) -> AnyPolicyModel:
    values: dict[str, Any] = {
        "groups_per_step": 4,
        "group_size": 2,
        "steps": 2,
        "carry_over": 0.5,
        "supply_fraction": 0.5,
        "hold_seconds": 1.0,
        "policy": policy,
    }
    return AnyPolicyModel([ModelCell(4) for _ in range(cells)], **(values | changes))


def settle_until(model: AnyPolicyModel, bursts: int) -> None:
    for _ in range(bursts * ROUNDS):
        if model.bursts >= bursts:
            return
        settle(model)
    raise AssertionError(f"stuck in burst {model.bursts}: {model}")


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("target", "steps"), [(1.0, 1), (1.5, 2), (1.0, 3)])
def test_measured_staleness_is_the_target(policy: str, target: float, steps: int) -> None:
    """E[d] is a setting, phi follows from it, and what is measured is what was asked for."""
    model = run_of(policy, steps=steps, carry_over=carry_over_for(target, steps))
    model.open_burst()
    settle_until(model, 60)
    steady = model.ages[len(model.ages) // 4 :]
    assert sum(steady) / len(steady) == pytest.approx(target, abs=0.05)
    assert target == expected_staleness(model.carry_over, steps)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_surplus_groups_are_kept_and_trained_once(policy: str) -> None:
    """Ten ready, batches of four, two updates a burst: what is left over waits for its batch, in order."""
    model = run_of(policy, carry_over=2.0)
    model.open_burst()
    settle_until(model, 5)
    trained = 5 * model.steps * model.groups_per_step
    assert len(model.ages) == trained
    assert trained + model.outstanding == model.dispatched // model.group_size


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_cell_does_everything_in_turns(policy: str) -> None:
    model = run_of(policy, cells=1, carry_over=0.0)
    model.open_burst()
    settle_until(model, 3)


def test_replaced_groups_get_an_engine_back_when_every_cell_trains() -> None:
    """All executions are closed, so every cell trains; then a group is dropped, and its replacement needs an engine."""
    model = run_of("waterlevel", carry_over=0.0, steps=1)
    model.open_burst()
    for _ in range(4):
        model.launch()
        while model.running:
            model.finish(0)
    for cell in model.cells:
        cell.role = CellRole.TRAINING
    model.drop()
    while model.may_assign:
        model.assign()
    model.evaluate()
    assert model.in_role(CellRole.TO_ROLLOUT) == [2]
    settle_until(model, 1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_safe_mode_freezes_roles_and_training_goes_on(policy: str) -> None:
    model = run_of(policy)
    model.open_burst()
    settle_until(model, 2)
    model.freeze(on=True)
    settle_until(model, 3)
    frozen = [cell.role for cell in model.cells]
    assert frozen[0] is CellRole.TRAINING
    assert CellRole.ROLLOUT in frozen
    settle_until(model, 6)
    assert [cell.role for cell in model.cells] == frozen
    model.freeze(on=False)
    settle_until(model, 8)
