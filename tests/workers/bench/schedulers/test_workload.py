"""The workload files: complete, what the script makes, and of the shape they claim."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from pydantic import ValidationError

from workers.bench.schedulers import draw
from workers.bench.schedulers.workload import (
    Execution,
    Turn,
    Workload,
    load_workload,
    save_workload,
    workload_files,
)
from workflows.messages.errors import InvalidSpec


def small(**changes) -> Workload:
    turn = Turn(asked=4, answer=10, tool_seconds=0.5)
    group = tuple(Execution(turns=(turn,) * (1 + member), reward=float(member)) for member in range(2))
    values = {
        "name": "small",
        "about": "a test",
        "seed": 0,
        "cells": 2,
        "slots": 2,
        "groups_per_step": 2,
        "executions_per_group": 2,
        "steps": 2,
        "tokens_per_second": 20.0,
        "training_tokens_per_second": 100.0,
        "groups": (group,) * 4,
    }
    return Workload(**(values | changes))


def test_seconds_and_tokens_of_an_execution() -> None:
    execution = small().groups[0][1]
    assert execution.seconds(20.0) == pytest.approx(2 * (10 / 20 + 0.5))
    assert execution.tokens == 2 * 30
    assert small().training_seconds(0) == pytest.approx(3 * 30 / 100)
    assert small().staleness == 0.5


def test_a_stretched_workload_takes_longer_and_is_otherwise_the_same() -> None:
    """Tokens, rewards and order stay; every second is multiplied, training's and the update's too."""
    drawn = small(update_seconds=1.5)
    twice = drawn.stretched(2)
    assert [one.tokens for group in twice.groups for one in group] == [
        one.tokens for group in drawn.groups for one in group
    ]
    assert twice.longest_seconds == pytest.approx(2 * drawn.longest_seconds)
    assert twice.training_seconds(0) == pytest.approx(2 * drawn.training_seconds(0))
    assert (twice.update_seconds, twice.slower) == (3.0, 2)
    assert twice.stretched(0.5) == drawn


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_workload(tmp_path / "w-0.json", small())
    assert load_workload(tmp_path / "w-0.json") == small()


def test_wrong_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="the updates consume 2"):
        small(steps=1)
    same = tuple(one.model_copy(update={"reward": 1.0}) for one in small().groups[0])
    with pytest.raises(ValidationError, match=r"groups\.0: equal rewards"):
        small(groups=(same,) * 4)
    (tmp_path / "w.json").write_text(json.dumps({"name": "w"}))
    with pytest.raises(InvalidSpec, match="about"):
        load_workload(tmp_path / "w.json")


@pytest.mark.parametrize("make", [draw.heavy_tailed, draw.published_batch, draw.nl2repobench])
def test_the_files_are_what_the_script_makes(make: Callable[[int], Workload]) -> None:
    made = [make(seed) for seed in draw.SEEDS]
    assert [load_workload(path) for path in workload_files(made[0].name).values()] == made


@pytest.mark.parametrize("noise", [0.0, draw.NOISE])
def test_the_phases_are_what_the_script_makes(noise: float) -> None:
    made = draw.two_phases(0, noise=noise)
    assert load_workload(workload_files(made.name)[0]) == made


def test_every_seed_has_the_published_shape() -> None:
    """Mean of a query's longest over the mean, as nearly as so few groups can show it."""
    for seed in draw.SEEDS:
        workload = load_workload(workload_files("nl2repobench")[seed])
        seconds = [[one.seconds(workload.tokens_per_second) for one in group] for group in workload.groups]
        mean = fmean(value for group in seconds for value in group)
        assert mean == pytest.approx(draw.MEAN_HOURS * 12.0, rel=0.02)
        assert fmean(max(group) for group in seconds) / mean == pytest.approx(2.96 / 1.93, rel=0.1)
        assert workload.staleness == 1.0


def test_seeds_differ() -> None:
    first, second, _ = (load_workload(path) for path in workload_files("heavy-tailed").values())
    assert first.groups != second.groups


def test_the_phases_differ_in_what_holds_them_up() -> None:
    workload = load_workload(workload_files("two-phases")[0])
    change = workload.phases[0] * workload.groups_per_step
    rollout = [fmean(one.seconds(workload.tokens_per_second) for one in group) for group in workload.groups]
    training = [workload.training_seconds(group) for group in range(len(workload.groups))]
    assert fmean(rollout[:change]) == pytest.approx(10 * fmean(rollout[change:]), rel=0.05)
    assert 8 * fmean(training[:change]) == pytest.approx(fmean(training[change:]), rel=0.05)
