"""The published settings: what is on file, what the rows are made of, and that nothing predicted was fitted."""

import json
from typing import Any

import pytest

from infra.simulator.fit import TARGETS
from infra.simulator.paper import FIT_FILE, LARGE, SMALL, Fit, Laboratory, load_fit, orders_of, rows_of, scenario_of
from infra.simulator.shape import limited, shape_of


def test_fit_is_on_file_with_its_recipe() -> None:
    fit, record = load_fit()
    assert record["recipe"]["targets"] == TARGETS
    assert record["recipe"]["command"] == "python -m infra.simulator.fit"
    assert Fit.model_validate(record["fit"]) == fit
    assert json.loads(FIT_FILE.read_text())["sensitivity"].keys() >= {"as fitted", "capacity x 0.8", "step time x 1.25"}


def test_settings_are_the_published_ones() -> None:
    fit, _ = load_fit()
    small, large = scenario_of(fit, SMALL, 0), scenario_of(fit, LARGE, 0)
    assert (small.nodes, small.cells, small.steps, small.staleness) == (32, 8, 48, 1.0)
    assert (large.nodes, large.cells, large.steps, large.staleness) == (192, 4, 48, 1.5)
    assert (small.transitions.to_training_seconds, small.transitions.to_rollout_seconds) == (8.52, 3.46)
    assert small.settled(small.variants[0]).carry_over == large.settled(large.variants[0]).carry_over == 0.0
    assert small.durations.timeout_seconds is None
    assert large.durations.timeout_seconds is not None


@pytest.mark.parametrize("size", [8, 16])
def test_shape_reproduces_the_duration_facts(size: int) -> None:
    """Drawn anew with other numbers, groups have the published mean of the longest and share of long ones."""
    import numpy as np

    shape = shape_of(size, 1.93, 2.96, 0.0951)
    rng = np.random.default_rng(3)
    variance = shape.query_sigma**2 + shape.execution_sigma**2
    query = shape.query_sigma * rng.standard_normal((40_000, 1))
    own = shape.execution_sigma * rng.standard_normal((40_000, size))
    hours = 1.93 * np.exp(query + own - variance / 2)
    assert hours.mean() == pytest.approx(1.93, rel=0.01)
    assert hours.max(1).mean() == pytest.approx(2.96, rel=0.01)
    assert (hours.max(1) >= 4).mean() == pytest.approx(0.0951, abs=0.006)
    mean, limit = limited(shape, size, 0.611, 0.382)
    longest = hours.max(1) * mean / 1.93
    assert (longest >= 4).mean() == pytest.approx(0.611, abs=0.01)
    assert (longest >= limit).mean() == pytest.approx(0.611 * 0.382, abs=0.01)


def test_facts_that_no_shape_gives_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 2"):
        shape_of(2, 1.93, 2.96, 0.0951)


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    fit, _ = load_fit()
    laboratory = Laboratory(fit, 1)
    return {"rows": rows_of(laboratory), "orders": orders_of(laboratory)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_carry_their_errors(table: dict[str, Any]) -> None:
    for row in table["rows"]:
        assert row.error == pytest.approx(row.simulated / row.published - 1, abs=1e-3)
    predicted = {row.name for row in table["rows"] if not row.fitted}
    assert len(predicted) == 5
    assert not any("slack" in name for name in predicted)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_schedulers_come_out_in_the_published_order(table: dict[str, Any]) -> None:
    assert all(table["orders"].values()), table["orders"]
