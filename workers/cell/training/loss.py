"""The policy loss of one micro-step, as pure functions of tensors.

Per target token, with ``w = A_i / |T_i|``::

    -min(rho * w, clip(rho, 1 - clip_low, 1 + clip_high) * w),   rho = exp(logp - behaviour_logp)

Micro-steps sum; nothing here divides by a count, so the batch's gradient does not depend on how it was cut
(docs/rules.md). The one division, by V, is the combine's. Both log-probs are of the distribution really sampled from:
the temperature is applied to the logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from infra.logprob_gaps import histogram
from workflows.messages.training import TokenMetrics

LOG_RATIO_LIMIT = 20.0
"""|log rho| is held below this, so that exp stays finite and a zero times infinity never becomes a NaN gradient."""


@dataclass(frozen=True)
class LossSettings:
    """`truncate_ratio`: rho is held at or below it (no gradient above), which bounds the loss where A is negative."""

    clip_low: float
    clip_high: float
    truncate_ratio: float | None = None


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Natural log-probs fp32 [r] of `ids` (int64 [r]) under softmax(logits / temperature); logits [r, vocab]."""
    scaled = logits.to(torch.float32)
    if temperature != 1.0:
        scaled = scaled / temperature
    return torch.log_softmax(scaled, dim=-1).gather(-1, ids[:, None]).squeeze(-1)


def policy_loss(logprobs: Tensor, behaviour: Tensor, weights: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """(loss sum, rho), the sum fp32 [] with gradient, rho detached [r] before clipping; all inputs fp32 [r].

    Without targets (r = 0) the sum is a finite zero.
    """
    log_ratio = (logprobs - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    plain = log_ratio.exp()
    rho = plain if settings.truncate_ratio is None else plain.clamp(max=settings.truncate_ratio)
    clipped = rho.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -torch.minimum(rho * weights, clipped * weights).sum(), plain.detach()


@torch.no_grad()
def token_metrics(
    logprobs: Tensor, behaviour: Tensor, weights: Tensor, rho: Tensor, loss_sum: Tensor, settings: LossSettings
) -> TokenMetrics:
    """What is reported of a micro-step. KL is the unbiased, non-negative estimate ``rho - 1 - log rho``."""
    if logprobs.numel() == 0:
        return TokenMetrics()
    gaps = (logprobs - behaviour).abs()
    too_high = (weights > 0) & (rho > 1 + settings.clip_high)
    too_low = (weights < 0) & (rho < 1 - settings.clip_low)
    return TokenMetrics(
        tokens=logprobs.numel(),
        loss_sum=loss_sum.item(),
        ratio_sum=rho.sum(dtype=torch.float64).item(),
        ratio_max=rho.max().item(),
        clipped_tokens=int((too_high | too_low).sum()),
        kl_sum=(rho - 1 - rho.log()).sum(dtype=torch.float64).item(),
        gap_sum=gaps.sum(dtype=torch.float64).item(),
        gap_max=gaps.max().item(),
        gaps=histogram(gaps.cpu().numpy()),
    )
