"""The planner: what it searches, what it says, and how sure it is."""

import pytest

from infra.simulator.plan import Candidate, Search, candidates_of, plan
from infra.simulator.scenario import Durations, Engines, Scenario, TrainingModel
from workflows.messages.errors import InvalidSpec


def base(**changes: object) -> Scenario:
    values = {
        "cells": 4,
        "steps": 8,
        "groups_per_step": 4,
        "executions_per_group": 4,
        "durations": Durations(mean_seconds=1000, execution_sigma=0.6),
        "engines": Engines(slots=24),
        "training": TrainingModel(step_seconds=300),
    }
    return Scenario.model_validate(values | changes)


SEARCH = Search(cells=(1, 4), burst_steps=(1, 2), policies=("waterlevel", "async"), seeds=2, finalists=2, short_steps=4)


def test_finds_a_set_up_and_says_how_sure_it_is() -> None:
    told: list[tuple[int, int]] = []
    report = plan(base(), SEARCH, lambda done, total: told.append((done, total)))
    assert report.trials == report.possible == 8
    assert told[-1][0] == told[-1][1] == 8 + 2 * 2
    assert report.best.hours_per_thousand <= report.others[0].hours_per_thousand
    assert 0 <= report.confidence <= 1
    assert report.gain_over_runner_up >= 0
    assert report.steps == 8
    assert report.hours == pytest.approx(report.best.hours_per_thousand * 8 * 16 / 1000)
    assert report.best.cells == 4


def test_same_plan_every_time() -> None:
    assert plan(base(), SEARCH) == plan(base(), SEARCH)


def test_trials_bound_the_search() -> None:
    chosen, possible = candidates_of(base(), Search(cells=(1, 2, 4), burst_steps=(1, 2, 3), trials=5))
    assert (len(chosen), possible) == (5, 27)
    assert len(set(chosen)) == 5


def test_training_work_follows_the_size_of_a_step() -> None:
    candidate = Candidate("waterlevel", 4, 24, 8, 4, 1, 1.0)
    assert candidate.scenario(base(), 4, 0).training.step_seconds == pytest.approx(600)
    assert candidate.carry_over == 1.0


def test_impossible_choices_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="no combination"):
        plan(base(), Search(burst_steps=(4,), staleness=(0.5,)))
    with pytest.raises(InvalidSpec, match="no combination"):
        plan(base(), Search(cells=(64,)))
