"""The loss of one micro-step, as pure functions of tensors: whoever has the logits of the targets can call it.

Per target token, with ``w = A_i / |T_i|`` and ``rho = exp(logp - behaviour_logp)``::

    -min(rho * w, clip(rho, 1 - clip_low, 1 + clip_high) * w)  +  kl_weight / |T_i| * (exp(d) - 1 - d)

where ``d = reference_logp - logp``; the second term only with a reference policy. Micro-steps sum; nothing here divides
by a count, so the batch's gradient does not depend on how it was cut (docs/rules.md). The one division, by V, is the
combine's. All log-probs are of the distribution really sampled from: the temperature is applied to the logits.

Sources: the clipped objective is PPO's (Schulman et al. 2017, eq. 7), with bounds of their own on either side as in
DAPO (Yu et al. 2025, section 3.1); the KL term is GRPO's (Shao et al. 2024, eq. 3 and 4), the estimator that Schulman
calls k3 ("Approximating KL divergence", 2020): unbiased for tokens the policy itself samples, and never negative.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from infra.logprob_gaps import histogram
from infra.micro_steps import PackedMicroStep
from workflows.messages.errors import InvalidInput
from workflows.messages.loss import LossSettings
from workflows.messages.training import TokenMetrics

LOG_RATIO_LIMIT = 20.0
"""|log rho| is held below this, so that exp stays finite and a zero times infinity never becomes a NaN gradient."""
ENTROPY_ELEMENTS = 1 << 22
"""Entropy is measured over so many probabilities at a time: beside the logits it needs no memory to speak of."""


@dataclass(frozen=True)
class TargetValues:
    """What a micro-step says of its targets, in their order, [r]: ids int64; behaviour log-probs, weights (A_i / |T_i|)
    and shares (1 / |T_i|) fp32; versions int64."""

    ids: Tensor
    behaviour: Tensor
    weights: Tensor
    shares: Tensor
    versions: Tensor

    @classmethod
    def of(cls, step: PackedMicroStep, device: torch.device) -> "TargetValues":
        places = torch.from_numpy(step.targets)
        arrays = (step.ids, step.behaviour_logprobs, step.weights, step.shares(), step.versions)
        ids, *others = (torch.from_numpy(array)[places].to(device) for array in arrays)
        return cls(ids.to(torch.int64), *others)


@dataclass(frozen=True)
class MicroStepLoss:
    """`total` [] with gradient, and what is reported of it. One that is not finite must not be trained on: then there
    is nothing to report."""

    total: Tensor
    is_finite: bool
    metrics: TokenMetrics


def micro_step_loss(
    logits: Tensor, step: PackedMicroStep, settings: LossSettings, reference: Tensor | None = None
) -> MicroStepLoss:
    """The summed loss of a micro-step's targets.

    `logits` [r, vocab], of any float type: what the places before the targets predict, in the order of the targets.
    `reference` [r]: their log-probs under the reference policy (at the same temperature), without gradient. Computes in
    fp32, or in fp64 if the logits are. Raises InvalidInput for a `reference` that is missing or was not asked for.
    """
    if (reference is None) != (settings.reference is None):
        raise InvalidInput("log-probs of a reference policy come with, and only with, its name", field="loss.reference")
    targets = TargetValues.of(step, logits.device)
    distribution = log_distribution(logits, step.header.temperature)
    logprobs = distribution.gather(-1, targets.ids[:, None]).squeeze(-1)
    loss, rho = policy_loss(logprobs, targets.behaviour, targets.weights, settings)
    if reference is not None:
        loss = loss + settings.kl_weight * reference_loss(logprobs, reference, targets.shares)
    if not torch.isfinite(loss):
        return MicroStepLoss(loss, is_finite=False, metrics=TokenMetrics())
    entropy = entropies(distribution) if settings.log_entropy else None
    metrics = token_metrics(step, targets, logprobs, rho, loss, settings, reference=reference, entropy=entropy)
    return MicroStepLoss(loss, is_finite=True, metrics=metrics)


def log_distribution(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) [r, vocab], fp32 at least."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        scaled = scaled / temperature
    return torch.log_softmax(scaled, dim=-1)


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Natural log-probs [r] of `ids` (int64 [r]) under softmax(logits / temperature); logits [r, vocab]."""
    return log_distribution(logits, temperature).gather(-1, ids[:, None]).squeeze(-1)


def policy_loss(logprobs: Tensor, behaviour: Tensor, weights: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """(loss sum [] with gradient, rho detached [r], before truncation and clipping); all inputs [r].

    With `truncate_ratio` rho is held at or below it and has no gradient above: that bounds the loss where A is negative
    (positive ones are bounded by the clipping), which dual-clip PPO does too (Ye et al. 2020).
    Without targets (r = 0) the sum is a finite zero.
    """
    log_ratio = (logprobs - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    plain = log_ratio.exp()
    rho = plain if settings.truncate_ratio is None else plain.clamp(max=settings.truncate_ratio)
    clipped = rho.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -torch.minimum(rho * weights, clipped * weights).sum(), plain.detach()


def reference_loss(logprobs: Tensor, reference: Tensor, shares: Tensor) -> Tensor:
    """Sum [] of the KL estimates, each weighted with its execution's 1 / |T_i|; all inputs [r]."""
    return (kl_estimates(logprobs, reference) * shares).sum()


def kl_estimates(logprobs: Tensor, other: Tensor) -> Tensor:
    """k3 [r], non-negative: ``exp(d) - 1 - d`` with ``d = other - logprobs`` held within LOG_RATIO_LIMIT."""
    log_ratio = (other - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_ratio.expm1() - log_ratio


@torch.no_grad()
def entropies(distribution: Tensor) -> Tensor:
    """Entropy [r] in nats of log-distributions [r, vocab]."""
    rows, vocabulary = distribution.shape
    parts = distribution.split(max(1, ENTROPY_ELEMENTS // max(1, vocabulary))) if rows else ()
    found = [-(part.exp() * part).sum(-1) for part in parts]
    return torch.cat(found) if found else distribution.new_zeros(0)


@torch.no_grad()
def token_metrics(
    step: PackedMicroStep,
    targets: TargetValues,
    logprobs: Tensor,
    rho: Tensor,
    loss_sum: Tensor,
    settings: LossSettings,
    *,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
) -> TokenMetrics:
    """What is reported of a micro-step, as sums. The KL to the behaviour policy is k3 too: ``rho - 1 - log rho``."""
    work = {"computed_tokens": step.tokens, "path_tokens": step.path_tokens}
    if logprobs.numel() == 0:
        return TokenMetrics.model_validate(work)
    gaps = (logprobs - targets.behaviour).abs()
    weights = targets.weights
    versions, counts = targets.versions.unique(return_counts=True)
    return TokenMetrics(
        tokens=logprobs.numel(),
        loss_sum=loss_sum.item(),
        ratio_sum=_sum(rho),
        ratio_max=rho.max().item(),
        clipped_low=int(((weights < 0) & (rho < 1 - settings.clip_low)).sum()),
        clipped_high=int(((weights > 0) & (rho > 1 + settings.clip_high)).sum()),
        truncated=0 if settings.truncate_ratio is None else int((rho > settings.truncate_ratio).sum()),
        kl_sum=_sum(rho - 1 - rho.log()),
        reference_tokens=0 if reference is None else logprobs.numel(),
        reference_kl_sum=0.0 if reference is None else _sum(kl_estimates(logprobs, reference)),
        entropy_tokens=0 if entropy is None else logprobs.numel(),
        entropy_sum=0.0 if entropy is None else _sum(entropy),
        gap_sum=_sum(gaps),
        gap_max=gaps.max().item(),
        gaps=histogram(gaps.cpu().numpy()),
        versions=dict(zip(versions.tolist(), counts.tolist(), strict=True)),
        computed_tokens=step.tokens,
        path_tokens=step.path_tokens,
    )


def _sum(values: Tensor) -> float:
    return values.sum(dtype=torch.float64).item()
