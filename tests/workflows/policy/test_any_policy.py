"""Every policy under any order of events: counts are exact, moves are possible, one at a time, and every burst ends."""

from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.workflows.policy.any_policy import AnyPolicyModel
from tests.workflows.policy.machine import EventsInAnyOrder, settle, settle_until
from tests.workflows.policy.model import ModelCell
from workflows.messages.fleet import CellRole
from workflows.policy.registry import POLICIES
from workflows.policy.staleness import carry_over_for, expected_staleness
from workflows.policy.state import Bounds

ROUNDS = 600
"""Rounds in which a burst must end once nothing is broken any more."""


class AnyPolicy(EventsInAnyOrder):
    """Every policy: dropped groups, parked and lost cells, late cores and safe mode among the events."""

    model: AnyPolicyModel
    rounds = ROUNDS

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

    @precondition(lambda self: self.model.complete and self.model.dropped < 10)
    @rule()
    def group_is_dropped(self) -> None:
        self.model.drop()

    @rule(on=st.booleans())
    def operator_freezes_or_releases(self, on: bool) -> None:
        self.model.freeze(on=on)


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


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("target", "steps"), [(1.0, 1), (1.5, 2), (1.0, 3)])
def test_measured_staleness_is_the_target(policy: str, target: float, steps: int) -> None:
    """E[d] is a setting, phi follows from it, and what is measured is what was asked for."""
    model = run_of(policy, steps=steps, carry_over=carry_over_for(target, steps))
    model.open_burst()
    settle_until(model, 60, 60 * ROUNDS)
    steady = model.ages[len(model.ages) // 4 :]
    assert sum(steady) / len(steady) == pytest.approx(target, abs=0.05)
    assert target == expected_staleness(model.carry_over, steps)


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    half_groups=st.integers(1, 2),
    size=st.integers(1, 3),
    steps=st.integers(1, 3),
    carry_over=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    streaming=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_measured_staleness_is_the_target_in_any_order(
    policy: str,
    slots: list[int],
    half_groups: int,
    size: int,
    steps: int,
    carry_over: float,
    streaming: bool,
    seed: int,
) -> None:
    """Executions end in any order, cells fail and come back: the mean over groups is what phi and mu say."""
    model = AnyPolicyModel(
        [ModelCell(count) for count in slots],
        groups_per_step=2 * half_groups,
        group_size=size,
        steps=steps,
        carry_over=carry_over,
        supply_fraction=0.5,
        hold_seconds=1.0,
        policy=policy,
        streaming=streaming,
    )
    model.open_burst()
    chance = Random(seed)
    for _ in range(40 * ROUNDS):
        if model.bursts >= 40:
            break
        if chance.random() < 0.02:
            model.cells[chance.randrange(len(slots))].role = chance.choice([CellRole.LOST, CellRole.PARKED])
            model.evaluate()
        elif chance.random() < 0.2:
            for index in model.in_role(CellRole.LOST, CellRole.PARKED):
                model.cells[index].role = CellRole.ROLLOUT
        settle(model, chance.randrange(50))
    steady = model.ages[len(model.ages) // 4 :]
    assert model.bursts == 40
    assert sum(steady) / len(steady) == pytest.approx(expected_staleness(carry_over, steps), abs=0.05)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_surplus_groups_are_kept_and_trained_once(policy: str) -> None:
    """Ten ready, batches of four, two updates a burst: what is left over waits for its batch, in order."""
    model = run_of(policy, carry_over=2.0)
    model.open_burst()
    settle_until(model, 5, 5 * ROUNDS)
    trained = 5 * model.steps * model.groups_per_step
    assert len(model.ages) == trained
    assert trained + model.outstanding == model.dispatched // model.group_size


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_cell_does_everything_in_turns(policy: str) -> None:
    model = run_of(policy, cells=1, carry_over=0.0)
    model.open_burst()
    settle_until(model, 3, 3 * ROUNDS)


def orders(groups: int) -> list[str]:
    """Every order in which one of the groups is dropped (d), the others are admitted (a) and each then claimed (c)."""
    events = "d" + "a" * (groups - 1) + "c" * (groups - 1)
    return sorted(
        "".join(order)
        for order in set(permutations(events))
        if all(order[:n].count("c") <= order[:n].count("a") for n in range(len(order)))
    )


@pytest.mark.parametrize("order", orders(4))
def test_replaced_groups_get_an_engine_back_when_every_cell_trains(order: str) -> None:
    """All executions are over, so every cell trains; then a group is dropped, and its replacement needs an engine: as
    soon as there is nothing else to train on, whatever came first."""
    model = run_of("waterlevel", carry_over=0.0, steps=1)
    model.open_burst()
    for _ in range(4):
        model.launch()
        while model.running:
            model.finish(0)
    for cell in model.cells:
        cell.role = CellRole.TRAINING
    happens = {"d": model.drop, "a": model.admit, "c": model.assign}
    for event in order:
        happens[event]()
        model.evaluate()
        if model.dropped and not model.ready:
            break
        assert model.in_role(CellRole.TO_ROLLOUT) == []
    assert model.in_role(CellRole.TO_ROLLOUT) == [2]
    settle_until(model, 1, 1 * ROUNDS)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_safe_mode_freezes_roles_and_training_goes_on(policy: str) -> None:
    model = run_of(policy)
    model.open_burst()
    settle_until(model, 2, 2 * ROUNDS)
    model.freeze(on=True)
    settle_until(model, 3, 3 * ROUNDS)
    frozen = [cell.role for cell in model.cells]
    assert frozen[0] is CellRole.TRAINING
    assert CellRole.ROLLOUT in frozen
    settle_until(model, 6, 6 * ROUNDS)
    assert [cell.role for cell in model.cells] == frozen
    model.freeze(on=False)
    settle_until(model, 8, 8 * ROUNDS)
