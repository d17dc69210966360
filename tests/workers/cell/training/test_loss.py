import math

import pytest
import torch

from tests.workers.cell.training.material import pack, sampled
from workers.cell.training.loss import LossSettings, policy_loss, token_logprobs
from workers.cell.training.model import PolicyModel
from workers.cell.training.stream import SingleStageStream, target_logprobs
from workflows.messages.errors import InvalidInput

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.28)


def loss_of(rho: float, weight: float, settings: LossSettings = SETTINGS) -> tuple[float, float]:
    """Loss and its gradient by the log-prob, of one token with a given ratio."""
    logprobs = torch.tensor([-2.0 + math.log(rho)], requires_grad=True)
    loss, _ = policy_loss(logprobs, torch.tensor([-2.0]), torch.tensor([weight]), settings)
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.item()


@pytest.mark.parametrize(
    ("rho", "weight", "loss", "slope"),
    [
        (1.0, 0.5, -0.5, -0.5),
        (1.1, 0.5, -0.55, -0.55),
        (2.0, 0.5, -0.64, 0.0),  # clipped above: 1.28 * 0.5
        (0.5, 0.5, -0.25, -0.25),  # a positive advantage is never clipped below
        (0.5, -0.5, 0.4, 0.0),  # clipped below: 0.8 * 0.5
        (2.0, -0.5, 1.0, 1.0),  # a negative advantage is not clipped above
        (3.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_clipped_objective(rho: float, weight: float, loss: float, slope: float) -> None:
    assert loss_of(rho, weight) == pytest.approx((loss, slope), abs=1e-6)


def test_truncation_bounds_a_negative_advantage() -> None:
    truncating = LossSettings(clip_low=0.2, clip_high=0.28, truncate_ratio=2.0)
    assert loss_of(5.0, -1.0, truncating) == pytest.approx((2.0, 0.0), abs=1e-6)
    assert loss_of(1.5, -1.0, truncating) == pytest.approx((1.5, 1.5), abs=1e-5)


@pytest.mark.parametrize("weight", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("behaviour", [-300.0, -1e-4])
def test_absurd_ratios_stay_finite(weight: float, behaviour: float) -> None:
    logprobs = torch.tensor([-1e-4 if behaviour < -1 else -300.0], requires_grad=True)
    loss, rho = policy_loss(logprobs, torch.tensor([behaviour]), torch.tensor([weight]), SETTINGS)
    loss.backward()
    assert logprobs.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(rho).all()
    assert torch.isfinite(logprobs.grad).all()


def test_temperature_is_that_of_the_distribution_sampled_from() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    found = token_logprobs(logits, torch.tensor([1]), 0.5)
    wanted = 4.0 - math.log(math.exp(2.0) + math.exp(4.0) + math.exp(8.0))
    assert found.item() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("outputs", [[], [0], [0, 0, 0]])
def test_a_fully_masked_or_empty_micro_step_is_a_finite_zero(model: PolicyModel, outputs: list[int]) -> None:
    step = pack([sampled(f"e{k}", 1.0, prompt=5, output=output) for k, output in enumerate(outputs)])
    metrics = SingleStageStream(model).run(step, SETTINGS)
    assert (metrics.tokens, metrics.loss_sum) == (0, 0.0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_zero_length_executions_do_not_disturb_a_single_target(model: PolicyModel) -> None:
    one = sampled("e1", -0.7, prompt=4, output=1)
    alone = SingleStageStream(model).run(pack([one]), SETTINGS)
    among = SingleStageStream(model).run(pack([sampled("e0", 1.0, 3, 0), one, sampled("e2", 1.0, 9, 0)]), SETTINGS)
    assert alone.tokens == among.tokens == 1
    assert among.loss_sum == pytest.approx(alone.loss_sum, rel=1e-4)


def test_a_token_outside_the_vocabulary_is_refused(model: PolicyModel) -> None:
    step = pack([sampled("e", 1.0, 3, 3)])
    step.ids[1] = 97
    with pytest.raises(InvalidInput, match="token id 97"):
        target_logprobs(model, step)
