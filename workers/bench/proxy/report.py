"""Figures of a measurement, as `gyre bench proxy --json` prints them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from workers.bench.proxy.load import Round

BARS = {"ttft_added_ms_p50": 3.0, "ttft_added_ms_p99": 15.0, "cpu_vs_litellm": 0.2, "cpu_vs_sglang_router": 4.0}
"""What our figures must stay under (the CPU ratios: may reach)."""

BUSY = 0.9
"""Share of the engines' core above which they, and not the contestant, may set the pace."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def figures(rounds: Sequence[Round], plain: Sequence[float], added: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians over rounds with smallest and largest; ratios are medians of the ratios within each round."""
    names = list(dict.fromkeys(each.contestant for each in rounds))
    costs = {name: [each.cpu_per_1k_tokens for each in rounds if each.contestant == name] for name in names}
    found: dict[str, Any] = {}
    if added.get("gyre"):
        found["ttft_added_ms_p50"] = round(1000 * percentile(added["gyre"], 0.5), 3)
        found["ttft_added_ms_p99"] = round(1000 * percentile(added["gyre"], 0.99), 3)
    found["cpu_s_per_1k_tokens"] = {name: round(statistics.median(values), 4) for name, values in costs.items()}
    for name in names:
        if name != "gyre" and "gyre" in costs:
            ratios = [_ratio(ours, theirs) for ours, theirs in zip(costs["gyre"], costs[name], strict=True)]
            key = f"cpu_vs_{name.replace('-', '_')}"
            found[key] = round(statistics.median(ratios), 4)
            found[f"{key}_spread"] = [round(min(ratios), 4), round(max(ratios), 4)]
    found["bars_met"] = {name: found[name] <= bar for name, bar in BARS.items() if name in found}
    found["cpu_s_per_1k_tokens_spread"] = {
        name: [round(min(values), 4), round(max(values), 4)] for name, values in costs.items()
    }
    found["ttft_direct_ms"] = _spread(plain)
    found["ttft_added_ms"] = {name: _spread(values) for name, values in added.items() if values}
    found["tokens_per_second"] = {
        name: round(statistics.median(each.tokens_per_second for each in rounds if each.contestant == name), 1)
        for name in names
    }
    found["engine_core_busy"] = {
        name: round(max(each.rest_busy for each in rounds if each.contestant == name), 3) for name in names
    }
    found["pieces_per_token"] = {
        name: round(statistics.median(each.pieces / each.tokens for each in rounds if each.contestant == name), 3)
        for name in names
    }
    found["prompt_tokens"] = rounds[0].prompt_tokens if rounds else 0
    return found


def _ratio(ours: float, theirs: float) -> float:
    """Infinite where theirs is too short to be measured at all (the clock of CPU time ticks every 10 ms)."""
    return ours / theirs if theirs else math.inf


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    shares = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    return {name: round(1000 * percentile(seconds, share), 3) for name, share in shares}
