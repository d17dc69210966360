"""Forward and backward of micro-steps. One pipeline stage here: each is computed whole, as it comes.

`MicroStepStream` is the seam for the continuous 1F1B pipeline of cells with several stages: `run` may then return
before the backward of what was fed is done, and `drain` finishes it.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from workers.cell.training.attention import AttentionPlan
from workers.cell.training.loss import LossSettings, policy_loss, token_logprobs, token_metrics
from workers.cell.training.model import PolicyModel
from workflows.messages.errors import InvalidInput, Permanent
from workflows.messages.training import TokenMetrics


class MicroStepStream(Protocol):
    """Turns micro-steps into gradients."""

    def run(self, step: PackedMicroStep, settings: LossSettings) -> TokenMetrics:
        """Add the gradient of `step` to the parameters' `.grad`."""
        ...

    def drain(self) -> None:
        """Finish everything outstanding; after it the gradient sum is complete."""
        ...


@dataclass(frozen=True)
class Targets:
    """The trained tokens of a micro-step as tensors [r]: log-probs (with gradient), behaviour, weights, versions."""

    logprobs: Tensor
    behaviour: Tensor
    weights: Tensor
    versions: Tensor


def target_logprobs(model: PolicyModel, step: PackedMicroStep) -> Targets:
    """One forward pass over paths or a tree, each token computed once; r may be 0, and then nothing is computed.

    Raises InvalidInput for a token id outside the vocabulary.
    """
    if step.tokens and int(step.ids.max()) >= model.arch.vocab_size:
        raise InvalidInput(f"holds token id {int(step.ids.max())}", field="ids")
    device = next(model.parameters()).device
    places = torch.from_numpy(step.targets).nonzero().squeeze(-1).to(device)
    ids = torch.from_numpy(step.ids).to(device, torch.int64)
    if places.numel():
        positions = torch.from_numpy(step.positions).to(device, torch.int64)
        plan = AttentionPlan.of_segments(step.segment_offsets.tolist(), step.segment_parents.tolist(), device)
        before = torch.from_numpy(step.predecessors()).to(device, torch.int64)
        logits = model.logits(ids, positions, plan, rows=before[places])
        logprobs = token_logprobs(logits, ids[places], step.header.temperature)
    else:
        logprobs = torch.zeros(0, device=device)
    behaviour, weights, versions = (
        torch.from_numpy(array).to(device)[places] for array in (step.behaviour_logprobs, step.weights, step.versions)
    )
    return Targets(logprobs, behaviour, weights, versions)


class SingleStageStream:
    """The stream of a cell with one pipeline stage."""

    def __init__(self, model: PolicyModel) -> None:
        self._model = model

    def run(self, step: PackedMicroStep, settings: LossSettings) -> TokenMetrics:
        """See MicroStepStream. A loss that is not finite is refused before it can touch the sum (Permanent)."""
        targets = target_logprobs(self._model, step)
        loss, rho = policy_loss(targets.logprobs, targets.behaviour, targets.weights, settings)
        if not torch.isfinite(loss):
            raise Permanent(f"micro-step {step.header.index} of {step.header.batch} has loss {loss.item()}")
        metrics = token_metrics(targets.logprobs, targets.behaviour, targets.weights, rho, loss, settings)
        if loss.requires_grad:
            loss.backward()
        return metrics

    def drain(self) -> None:
        """Nothing is ever outstanding with one stage."""
