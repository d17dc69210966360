"""Forward and backward of micro-steps. One pipeline stage here: each is computed whole, as it comes.

`MicroStepStream` is the seam for the continuous 1F1B pipeline of cells with several stages: `run` may then return
before the backward of what was fed is done, and `drain` finishes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from workers.cell.training.attention import AttentionPlan
from workers.cell.training.loss import LossSettings, TargetValues, micro_step_loss, token_logprobs
from workers.cell.training.model import PolicyModel
from workflows.messages.errors import InvalidInput, Permanent
from workflows.messages.training import TokenMetrics

ReferenceLogprobs = Callable[[PackedMicroStep, LossSettings], Tensor | None]
"""The targets' log-probs [r] under the reference policy the settings name; None if they name none."""


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


def target_logits(model: PolicyModel, step: PackedMicroStep) -> Tensor:
    """[r, vocab]: what predicts the targets, by one forward pass over paths or a tree, each token computed once.

    r may be 0, and then nothing is computed. Raises InvalidInput for a token id outside the vocabulary.
    """
    if step.tokens and int(step.ids.max()) >= model.arch.vocab_size:
        raise InvalidInput(f"holds token id {int(step.ids.max())}", field="ids")
    device = next(model.parameters()).device
    places = torch.from_numpy(step.targets).nonzero().squeeze(-1).to(device)
    if not places.numel():
        return torch.zeros(0, model.arch.vocab_size, device=device)
    ids = torch.from_numpy(step.ids).to(device, torch.int64)
    positions = torch.from_numpy(step.positions).to(device, torch.int64)
    plan = AttentionPlan.of_segments(step.segment_offsets.tolist(), step.segment_parents.tolist(), device)
    before = torch.from_numpy(step.predecessors()).to(device, torch.int64)
    return model.logits(ids, positions, plan, rows=before[places])


def target_logprobs(model: PolicyModel, step: PackedMicroStep) -> Targets:
    """The targets' log-probs at the temperature they were sampled at; see `target_logits`."""
    logits = target_logits(model, step)
    values = TargetValues.of(step, logits.device)
    logprobs = token_logprobs(logits, values.ids, step.header.temperature)
    return Targets(logprobs, values.behaviour, values.weights, values.versions)


def no_reference(_step: PackedMicroStep, _settings: LossSettings) -> None:
    """For streams whose settings never name a reference policy."""


class SingleStageStream:
    """The stream of a cell with one pipeline stage."""

    def __init__(self, model: PolicyModel, reference: ReferenceLogprobs = no_reference) -> None:
        self._model, self._reference = model, reference

    def run(self, step: PackedMicroStep, settings: LossSettings) -> TokenMetrics:
        """See MicroStepStream. A loss that is not finite is refused before it can touch the sum (Permanent)."""
        reference = self._reference(step, settings)
        loss = micro_step_loss(target_logits(self._model, step), step, settings, reference)
        if not loss.is_finite:
            raise Permanent(f"micro-step {step.header.index} of {step.header.batch} has loss {loss.total.item()}")
        if loss.total.requires_grad:
            loss.total.backward()
        return loss.metrics

    def drain(self) -> None:
        """Nothing is ever outstanding with one stage."""
