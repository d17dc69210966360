"""What `gyre bench tree` compares is the same work, and its figures are what they are called."""

import pytest
import torch

from infra.weights.architecture import Architecture
from infra.weights.folder import load_weights
from tests.workers.cell.training.material import write_policy
from workers.bench import tree
from workers.cell.training.model import PolicyModel, build_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    torch.set_num_threads(1)
    folder = write_policy(tmp_path_factory.mktemp("policy") / "p")
    model = build_model(Architecture.from_folder(folder))
    model.load_hf(load_weights(folder))
    return model


def test_a_row_says_what_was_measured(model: PolicyModel) -> None:
    row = tree.measure(model, 4, 120, rounds=2, row_seconds=600)
    assert (row["sharing"], row["rounds"]) == (pytest.approx(4, rel=0.05), 2)
    assert 1 < row["flop_bound"] < 4.5
    assert row["speedup_over_bound"] == pytest.approx(row["speedup"] / row["flop_bound"], abs=2e-3)
    assert row["saved_bytes"] < row["flat_saved_bytes_in_one_micro_step"]
    assert tree.measure(model, 2, 60, rounds=5, row_seconds=0)["rounds"] == 1


def test_what_paths_keep_together_is_the_sum_of_what_they_keep(model: PolicyModel) -> None:
    shape = tree.Shape.of(4, 200)
    together = tree.saved_bytes(model, *tree.as_paths(shape, 0, shape.flat_tokens, 90))
    apart = [tree.saved_bytes(model, step) for step in tree.as_paths(shape, 0, shape.tree_tokens, 90)]
    assert len(apart) > 2
    assert sum(apart) == pytest.approx(together, rel=0.01)
