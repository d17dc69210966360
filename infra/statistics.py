"""Small statistics of results."""

from math import sqrt

Z95 = 1.959964
"""Two-sided 95% quantile of the normal distribution."""


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """95% interval of a proportion (Wilson, 1927); (0, 1) without trials. Rewards in [0, 1] may be summed too."""
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    spread = Z95 * sqrt(rate * (1 - rate) / trials + Z95**2 / (4 * trials**2))
    center = rate + Z95**2 / (2 * trials)
    scale = 1 + Z95**2 / trials
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


def paired_interval(differences: list[float]) -> tuple[float, float, float]:
    """(mean, low, high): 95% normal interval of the mean of paired differences."""
    count = len(differences)
    if count == 0:
        return 0.0, 0.0, 0.0
    mean = sum(differences) / count
    if count == 1:
        return mean, mean, mean
    variance = sum((value - mean) ** 2 for value in differences) / (count - 1)
    spread = Z95 * sqrt(variance / count)
    return mean, mean - spread, mean + spread
