"""What is shown of a micro-step, a cell's sum or a whole update: its token sums as plain numbers.

Means are taken here, at the very end, of sums over tokens; never of other means.
"""

from infra.logprob_gaps import percentile
from workflows.messages.batch import Figures
from workflows.messages.training import TokenMetrics


def figures(metrics: TokenMetrics, version: int) -> Figures:
    """Numbers by name. Log-probs are natural, per target token; `version` is the one being trained.

    `staleness_tokens` counts targets by the versions between the one that sampled them and `version`. `dedupe_ratio` is
    what would have been computed path by path over what was. What was not measured is left out.
    """
    tokens = max(1, metrics.tokens)
    found: Figures = {
        "target_tokens": float(metrics.tokens),
        "computed_tokens": float(metrics.computed_tokens),
        "dedupe_ratio": metrics.path_tokens / max(1, metrics.computed_tokens),
        "loss_sum": metrics.loss_sum,
        "ratio_mean": metrics.ratio_sum / tokens,
        "ratio_max": metrics.ratio_max,
        "clip_fraction": (metrics.clipped_low + metrics.clipped_high) / tokens,
        "clip_fraction_low": metrics.clipped_low / tokens,
        "clip_fraction_high": metrics.clipped_high / tokens,
        "truncated_fraction": metrics.truncated / tokens,
        "kl_to_behaviour": metrics.kl_sum / tokens,
        "logprob_gap_mean": metrics.gap_sum / tokens,
        "logprob_gap_p999": percentile(metrics.gaps, 0.999),
        "logprob_gap_max": metrics.gap_max,
        "staleness_tokens": {str(version - sampled): float(count) for sampled, count in metrics.versions.items()},
    }
    if metrics.reference_tokens:
        found["kl_to_reference"] = metrics.reference_kl_sum / metrics.reference_tokens
    if metrics.entropy_tokens:
        found["entropy"] = metrics.entropy_sum / metrics.entropy_tokens
    return found


def in_words(figures: Figures) -> str:
    """One line for people; empty without numbers (a batch without an update)."""
    if "loss" not in figures:
        return ""
    parts = [
        f"loss {_number(figures, 'loss')}, gradient norm {_number(figures, 'grad_norm')}",
        f"ratio {_number(figures, 'ratio_mean')} (at most {_number(figures, 'ratio_max')})",
        f"clipped {_percent(figures, 'clip_fraction_low')} low, {_percent(figures, 'clip_fraction_high')} high",
        f"KL to behaviour {_number(figures, 'kl_to_behaviour')}",
    ]
    if "kl_to_reference" in figures:
        parts.append(f"KL to reference {_number(figures, 'kl_to_reference')}")
    if "entropy" in figures:
        parts.append(f"entropy {_number(figures, 'entropy')}")
    parts.append(
        f"{_number(figures, 'target_tokens')} targets of {_number(figures, 'computed_tokens')} tokens computed "
        f"(dedupe {_number(figures, 'dedupe_ratio')})"
    )
    for name, what in (
        ("staleness_executions", "executions by staleness"),
        ("staleness_tokens", "targets by staleness"),
        ("micro_steps_by_cell", "micro-steps by cell"),
    ):
        histogram = figures.get(name)
        if isinstance(histogram, dict) and histogram:
            parts.append(f"{what} " + ", ".join(f"{key}: {count:.0f}" for key, count in sorted(histogram.items())))
    return "; ".join(parts)


def _number(figures: Figures, name: str) -> str:
    value = figures.get(name)
    if not isinstance(value, int | float):
        return "?"
    return f"{value:.0f}" if name.endswith("_tokens") else f"{value:.4g}"


def _percent(figures: Figures, name: str) -> str:
    value = figures.get(name)
    return f"{value:.1%}" if isinstance(value, int | float) else "?"
