"""From recorded calls to the gradient: however trajectories are laid out and cut, it is the same (field case 35)."""

import pytest
import torch
from torch import Tensor

from activities.trajectories.growth import grow
from activities.trajectories.harvest import harvest
from activities.trajectories.packing import Piece, pack
from infra.micro_steps import PackedMicroStep
from tests.activities.trajectories.strategies import grow as record
from tests.activities.trajectories.test_oracle import provenance, request
from workers.cell.training.loss import LossSettings
from workers.cell.training.model import PolicyModel
from workers.cell.training.stream import SingleStageStream
from workflows.messages.burst import Selection


def gradient(model: PolicyModel, steps: list[PackedMicroStep]) -> dict[str, Tensor]:
    """Summed over micro-steps, as a cell does."""
    model.zero_grad(set_to_none=True)
    stream = SingleStageStream(model)
    for step in steps:
        stream.run(step, LossSettings(clip_low=0.2, clip_high=0.28))
    return {
        name: torch.zeros_like(one) if one.grad is None else one.grad.clone() for name, one in model.named_parameters()
    }


def trajectories(group) -> list[Piece]:
    pieces = []
    for number, calls in enumerate(group):
        name = f"e{number}"
        tree = harvest(grow(name, calls, seed=1, selection=Selection(most_paths=None)))
        if tree.target_tokens:
            pieces.append(Piece(tree, 1.0 - 1.5 * number, tree.target_tokens, provenance(name)))
    return pieces


@pytest.mark.parametrize("seed", range(4))
def test_layouts_and_cuts_give_one_gradient(model: PolicyModel, seed: int):
    pieces = trajectories([record(10 * seed + number, 9, 5) for number in range(2)])
    wanted = gradient(model, pack(pieces, request("flat", 10_000)))
    assert any(one.any() for one in wanted.values())
    for layout, tokens in (("flat", 9), ("tree", 10_000), ("tree", 13)):
        found = gradient(model, pack(pieces, request(layout, tokens)))
        for name, right in wanted.items():
            assert (found[name] - right).norm() <= 1e-5 * right.norm() + 1e-8, (layout, tokens, name)


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_without_targets_there_is_nothing_to_compute(model: PolicyModel, layout):
    assert all(not one.any() for one in gradient(model, pack([], request(layout, 10))).values())
