from dataclasses import replace

import pytest

from activities.trajectories.growth import grow
from tests.activities.trajectories import oracle
from workers.bench.trajectories import exponent, made_up, measure
from workflows.messages.burst import Selection


def test_a_small_execution_is_measured_whole(tmp_path):
    cost = measure(30_000, tmp_path, rounds=1)
    figures = cost.figures()
    assert figures["tokens"] >= 30_000
    assert figures["conditioned_tokens"] > figures["tokens"]
    assert 0 < figures["target_tokens"] <= figures["packed_tokens"] <= figures["flat_tokens"]
    assert figures["total_tokens_per_second"] > 0
    assert figures["bytes_per_token"] > 4


def test_what_is_measured_is_what_brute_force_selects():
    recorded = made_up(3_000, seed=3)
    chosen = grow("bench", recorded, seed=1, selection=Selection()).chosen
    expected = oracle.select(recorded, "bench/1", 5, Selection().role_priority)
    assert [recorded[path.leaf.call].call for path in chosen] == [path.leaf for path in expected]


def test_the_exponent_of_something_linear_is_one(tmp_path):
    cost = measure(5_000, tmp_path, rounds=1)
    costs = [
        replace(cost, tokens=size, read_seconds=size * 1e-7, tree_seconds=size * 1e-8, harvest_seconds=0.0)
        for size in (1000, 2000, 8000)
    ]
    assert exponent(costs) == pytest.approx(1.0)
