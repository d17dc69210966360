"""Forward and backward of micro-steps. One pipeline stage here: each is computed whole, as it comes.

`MicroStepStream` is what an actor feeds; `pipeline.front` is the one of cells with several stages, where several
micro-steps are in flight at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infra.micro_steps import PackedMicroStep
from infra.transfer import TransferEndpoint
from workers.cell.training.gradients import GradientBuffer
from workers.cell.training.loss import LossSettings, TargetValues, micro_step_loss, token_logprobs
from workers.cell.training.model import PolicyModel
from workers.cell.training.step_tensors import StepTensors
from workers.cell.training.weights_state import HeldWeights
from workers.cell.training.whole import WholePolicy
from workflows.messages.errors import GyreError, Permanent
from workflows.messages.training import TokenMetrics

ReferenceLogprobs = Callable[[PackedMicroStep, LossSettings], Tensor | None]
"""The targets' log-probs [r] under the reference policy the settings name; None if they name none."""
Fed = Callable[[TokenMetrics | GyreError], None]
"""Told once what became of a micro-step: its metrics when its gradient is in the sum, or why it was refused."""


class MicroStepStream(Protocol):
    """Turns micro-steps into gradients, in the order in which they are fed."""

    def use_reference(self, reference: ReferenceLogprobs) -> None:
        """Where log-probs under reference policies come from."""
        ...

    @property
    def whole(self) -> WholePolicy:
        """The weights it computes with, as soon as `hold` has been called."""
        ...

    def hold(self, weights: HeldWeights) -> None:
        """The whole's weights are `weights` now; compute with them. Nothing may be in flight."""
        ...

    def gradient_buffer(self, endpoint: TransferEndpoint) -> GradientBuffer:
        """Where the sum is."""
        ...

    @property
    def in_flight(self) -> int:
        """Micro-steps fed and not yet finished."""
        ...

    @property
    def is_intact(self) -> bool:
        """No pass broke off half-way: the sum holds what is finished, and nothing else."""
        ...

    def feed(self, step: PackedMicroStep, settings: LossSettings, fed: Fed) -> int:
        """Add the gradient of `step` to the sum; it may be there only after later calls. Raises InvalidInput.

        Returns its lane: micro-steps of one lane are summed in the order in which they were fed, lanes in their order
        at the end.
        """
        ...

    def advance(self) -> None:
        """Finish at least the oldest one in flight, if there is any."""
        ...

    def drain(self) -> None:
        """Finish everything in flight; after it the gradient sum is complete."""
        ...

    def break_off(self) -> None:
        """A pass failed half-way: forget what is in flight, or end this process if that cannot be done."""
        ...

    def look(self, step: PackedMicroStep) -> Tensor:
        """Logits [r, vocab] of the targets, without gradient; with nothing in flight."""
        ...


@dataclass(frozen=True)
class Targets:
    """The trained tokens of a micro-step as tensors [r]: log-probs (with gradient), behaviour, weights, versions."""

    logprobs: Tensor
    behaviour: Tensor
    weights: Tensor
    versions: Tensor

    @classmethod
    def of(cls, logits: Tensor, step: PackedMicroStep) -> "Targets":
        """Log-probs at the temperature the targets were sampled at, from their logits [r, vocab]."""
        values = TargetValues.of(step, logits.device)
        logprobs = token_logprobs(logits, values.ids, step.header.temperature)
        return cls(logprobs, values.behaviour, values.weights, values.versions)


def target_logits(model: PolicyModel, step: PackedMicroStep) -> Tensor:
    """[r, vocab]: what predicts the targets, by one forward pass over paths or a tree, each token computed once.

    r may be 0, and then nothing is computed. Raises InvalidInput for a token id outside the vocabulary.
    """
    device = next(model.parameters()).device
    tensors = StepTensors.of(step, model.arch.vocab_size, device)
    if not tensors.rows.numel():
        return torch.zeros(0, model.arch.vocab_size, device=device)
    return model.logits(tensors.ids, tensors.positions, tensors.plan, rows=tensors.rows)


def target_logprobs(model: PolicyModel, step: PackedMicroStep) -> Targets:
    """See `target_logits`."""
    return Targets.of(target_logits(model, step), step)


def no_reference(_step: PackedMicroStep, _settings: LossSettings) -> None:
    """For streams whose settings never name a reference policy."""


class SingleStageStream:
    """The stream of a cell with one pipeline stage."""

    in_flight = 0

    def __init__(self, model: PolicyModel, reference: ReferenceLogprobs = no_reference) -> None:
        self.whole, self.reference = model, reference
        self.is_intact = True

    def use_reference(self, reference: ReferenceLogprobs) -> None:
        self.reference = reference

    def hold(self, weights: HeldWeights) -> None:
        """The whole is what it computes with."""

    def gradient_buffer(self, endpoint: TransferEndpoint) -> GradientBuffer:
        return GradientBuffer(self.whole, endpoint)

    def run(self, step: PackedMicroStep, settings: LossSettings) -> TokenMetrics:
        """See `feed`. A loss that is not finite is refused before it can touch the sum (Permanent)."""
        reference = self.reference(step, settings)
        loss = micro_step_loss(target_logits(self.whole, step), step, settings, reference)
        if not loss.is_finite:
            raise Permanent(f"micro-step {step.header.index} of {step.header.batch} has loss {loss.total.item()}")
        if loss.total.requires_grad:
            self.is_intact = False
            loss.total.backward()
            self.is_intact = True
        return loss.metrics

    def feed(self, step: PackedMicroStep, settings: LossSettings, fed: Fed) -> int:
        """See MicroStepStream; done when it returns. Raises what it refuses, instead of telling."""
        fed(self.run(step, settings))
        return 0

    def advance(self) -> None:
        """Nothing is ever in flight with one stage."""

    def drain(self) -> None:
        """Nothing is ever in flight with one stage."""

    def break_off(self) -> None:
        """Nothing is in flight; the sum starts afresh."""
        self.is_intact = True

    @torch.no_grad()
    def look(self, step: PackedMicroStep) -> Tensor:
        return target_logits(self.whole, step)
