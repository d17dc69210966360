"""Scheduling in the burst file: defaults, E[d], and every wrong value named."""

import pytest
from pydantic import ValidationError

from workflows.messages.burst import BurstSpec
from workflows.messages.policies import Bounds, PolicySettings
from workflows.policy.registry import POLICIES
from workflows.policy.staleness import carry_over_for, expected_staleness

PLAIN = {"run": "r", "name": "n", "tasks": "t"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"policy": {"name": "magic"}}, "policy.name"),
        ({"policy": {"split": 0}}, "policy.split"),
        ({"policy": {"shuffle": True}}, "shuffle: needs streaming = false"),
        ({"policy": {"throughput": {"low_share": 1}}}, "policy.throughput.low_share"),
        ({"policy": {"safe_mode": {"failed_moves": 0}}}, "policy.safe_mode.failed_moves"),
        ({"policy": {"bounds": {"min_training_cells": 3, "max_training_cells": 2}}}, "max_training_cells: 2 is below"),
        ({"policy": {"fraction": 1}}, "policy.fraction"),
        ({"staleness": 0.4, "steps": 2}, "staleness: 0.4 is below what 2 steps cause"),
        ({"staleness": 1.0, "carry_over": 0.5}, "carry_over: follows from staleness"),
        ({"staleness": -1}, "staleness"),
    ],
)
def test_a_wrong_value_names_its_field(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BurstSpec.model_validate(PLAIN | wrong)
    error = caught.value.errors()[0]
    assert named in ".".join(str(part) for part in error["loc"]) or named in error["msg"]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_can_be_named(name: str) -> None:
    assert BurstSpec.model_validate(PLAIN | {"policy": {"name": name}}).policy.name == name


@pytest.mark.parametrize(("target", "steps"), [(0.5, 2), (1.0, 1), (1.0, 3), (1.5, 2), (0.0, 1)])
def test_the_carry_over_follows_from_the_staleness(target: float, steps: int) -> None:
    spec = BurstSpec.model_validate(PLAIN | {"staleness": target, "steps": steps, "groups_per_step": 4})
    assert spec.phi == carry_over_for(target, steps)
    assert spec.expected_staleness == expected_staleness(spec.phi, steps) == target
    assert spec.quota == round((spec.phi + steps) * 4)
    assert spec.model_copy(update={"final": True}).quota == steps * 4
    given = BurstSpec.model_validate(PLAIN | {"carry_over": spec.phi, "steps": steps, "groups_per_step": 4})
    assert (given.quota, given.expected_staleness) == (spec.quota, target)


def test_the_tighter_bound_wins() -> None:
    fleet = Bounds(min_rollout_cells=2, max_training_cells=3)
    assert Bounds(min_rollout_cells=1, min_training_cells=1).within(fleet) == Bounds(
        min_rollout_cells=2, min_training_cells=1, max_training_cells=3
    )
    assert Bounds(max_training_cells=2, min_training_cells=2).within(fleet).max_training_cells == 2
    assert Bounds(min_training_cells=5).within(fleet).min_training_cells == 3


def test_what_the_fleet_cannot_do_is_named() -> None:
    assert "policy.split" in PolicySettings(split=3).misfit(3)
    assert "policy.bounds.min_rollout_cells" in PolicySettings(bounds=Bounds(min_rollout_cells=2)).misfit(2)
    assert "policy.bounds.min_training_cells" in PolicySettings(bounds=Bounds(min_training_cells=4)).misfit(3)
    assert PolicySettings(split=1).misfit(1) == PolicySettings(split=2).misfit(3) == ""
