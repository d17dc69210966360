"""A component's throughput as a function of its units, re-calibrated from recent measurements.

    seconds per item at one slot    t(load) = base + slope * load
    throughput                      X(units) = n / t(n / slots),  n = min(items at hand, slots)

`slope` is what batching costs: a fuller engine serves each of its requests more slowly. Both are fitted by least
squares over windows that count less the older they are; with one load ever seen only `base` follows and `slope`
stays what it was. A window counts by the items it holds, in iterations: where a burst has several steps, the first
window holds most executions and the later ones a few stragglers, which say little of all. A window that is off by more
than a factor of two means that the workload has changed: what was learned before is forgotten at once. One with less
than an iteration's items has to be off by more, for a single execution is often twice as long as another.
"""

from math import log, sqrt

from pydantic import Field

from workflows.messages.base import Message
from workflows.policy.component import ComponentView, Measurement

FORGET = 0.8
"""Weight of an iteration's items relative to those of the next: the last five make up two thirds of the fit."""
CHANGE = 2.0
"""A window of an iteration's items that is this many times as slow or as quick as predicted is of another workload."""
_SPREAD = 1e-4
"""Variance of the load below which a slope cannot be told from noise."""


class Calibration(Message):
    """Weighted sums of the windows seen (weight, load, load squared, seconds, load times seconds), and the model.

    `fresh`: windows since the workload changed or the allocation did. `scatter`: mean squared logarithm of measured
    over predicted seconds, which is the noise of the telemetry; it outlives changes of the workload.
    """

    weight: float = 0.0
    load: float = 0.0
    load_squared: float = 0.0
    seconds: float = 0.0
    load_seconds: float = 0.0
    fresh: int = 0
    scatter: float = Field(default=0.0, ge=0)
    base: float = Field(default=0.0, ge=0)
    slope: float = Field(default=0.0, ge=0)

    @property
    def known(self) -> bool:
        return self.weight > 0

    def after(self, window: Measurement, iterations: float = 1.0) -> "Calibration":
        """The calibration with one more window, which holds the items of so many iterations.

        One in which the component had nothing to do contradicts nothing of what is known: it counts as a look, no more.
        One in which it worked and finished nothing says nothing.
        """
        seconds = window.seconds_per_item
        if seconds is None:
            return self.model_copy(update={"fresh": self.fresh + 1}) if self.known and window.idle else self
        scatter, keep = self.scatter, FORGET**iterations
        if self.known:
            off = log(seconds / max(self.base + self.slope * window.load, 1e-12))
            if abs(off) * min(1.0, iterations) > log(CHANGE):
                return Calibration(scatter=scatter).after(window, iterations)
            scatter = keep * scatter + (1 - keep) * off**2
        weight = keep * self.weight + iterations
        load = keep * self.load + iterations * window.load
        squared = keep * self.load_squared + iterations * window.load**2
        total = keep * self.seconds + iterations * seconds
        cross = keep * self.load_seconds + iterations * window.load * seconds
        variance = squared / weight - (load / weight) ** 2
        slope = self.slope
        if variance > _SPREAD:
            slope = max(0.0, (cross / weight - load * total / weight**2) / variance)
        base = max(0.0, total / weight - slope * load / weight)
        if base == 0.0:  # more slope than there are seconds: then all of them scale with the load
            slope = total / max(load, _SPREAD)
        return Calibration(
            weight=weight,
            load=load,
            load_squared=squared,
            seconds=total,
            load_seconds=cross,
            fresh=self.fresh + 1,
            scatter=scatter,
            base=base,
            slope=slope,
        )

    @property
    def uncertainty(self) -> float:
        """Relative standard error of a predicted time; 1 before anything is known."""
        if not self.known:
            return 1.0
        return sqrt(self.scatter / min(max(self.fresh, 1), 1 / (1 - FORGET)))

    def throughput(self, view: ComponentView, units: int) -> float:
        """Items per second of `view` with `units` units; 0 without units or before anything was measured."""
        slots = units * view.slots_per_unit
        items = min(view.peak_items, slots)
        if items <= 0 or not self.known:
            return 0.0
        return items / max(self.base + self.slope * items / slots, 1e-12)

    def iteration_seconds(self, view: ComponentView, units: int) -> float:
        """Seconds the component needs for one iteration's items; infinite when it cannot do them."""
        if view.items_per_iteration <= 0:
            return 0.0
        pace = self.throughput(view, units)
        return view.items_per_iteration / pace if pace > 0 else float("inf")


def recalibrated(calibration: Calibration | None, view: ComponentView) -> Calibration:
    """The model after the windows measured since the last look."""
    result = calibration or Calibration()
    for window in view.recent:
        needed = view.items_per_iteration
        result = result.after(window, window.items / needed if needed > 0 else 1.0)
    return result
