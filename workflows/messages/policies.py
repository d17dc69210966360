"""How a burst is scheduled: the policy by its name, and every setting of every policy.

What a fleet allows (`Bounds`) is a setting of the fleet; a burst may narrow it.
"""

from typing import Literal

from pydantic import Field, model_validator

from workflows.messages.base import Written

PolicyName = Literal["waterlevel", "throughput", "async", "colocate", "lending"]


class Bounds(Written):
    """What the fleet allows, whatever a policy wants. Counts are of eligible cells."""

    min_rollout_cells: int = Field(default=0, ge=0)
    min_training_cells: int = Field(default=0, ge=0, description="kept by the policies that hold a split")
    max_training_cells: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> "Bounds":
        if self.max_training_cells is not None and self.min_training_cells > self.max_training_cells:
            raise ValueError(f"max_training_cells: {self.max_training_cells} is below min_training_cells")
        return self

    def within(self, fleet: "Bounds") -> "Bounds":
        """These bounds and the fleet's, whichever is tighter."""
        most = [bound for bound in (self.max_training_cells, fleet.max_training_cells) if bound is not None]
        largest = min(most, default=None)
        least = max(self.min_training_cells, fleet.min_training_cells)
        return Bounds(
            min_rollout_cells=max(self.min_rollout_cells, fleet.min_rollout_cells),
            min_training_cells=least if largest is None else min(least, largest),
            max_training_cells=largest,
        )


class ThroughputSettings(Written):
    """Thresholds of the `throughput` policy; ranges are those found good in print.

    A component donates when more than `low_share` of its units stay under `low_utilisation` for `low_seconds`. A plan
    is carried out when it saves more than `least_gain` of an iteration, plus `caution` times the relative error of the
    prediction, plus the migration over `horizon_iterations`. It stands on at least `least_windows` measurements of
    every component since the last move or change of the workload, and is made no sooner than `settle_seconds` after
    a move.
    """

    low_utilisation: float = Field(default=0.2, gt=0, lt=1)
    low_share: float = Field(default=0.8, ge=0, lt=1)
    low_seconds: float = Field(default=5.0, ge=0)
    candidates: int = Field(default=8, ge=3, le=10, description="releases considered: 1, 2, ... units")
    least_gain: float = Field(default=0.05, ge=0)
    caution: float = Field(default=2.0, ge=0, description="standard errors of the prediction")
    horizon_iterations: float = Field(default=1.0, gt=0)
    settle_seconds: float = Field(default=60.0, ge=0)
    least_windows: int = Field(default=2, ge=1)
    sample_seconds: float = Field(default=5.0, ge=0.2, description="how often a live pipeline is looked at")


class SafeModeSettings(Written):
    """When moving is a risk. A move is regretted when it realised less than `regret_share` of its predicted gain."""

    failed_moves: int = Field(default=3, ge=1, description="in a row")
    regretted_moves: int = Field(default=3, ge=1, description="in a row")
    regret_share: float = Field(default=0.0, le=1)
    prediction_error: float = Field(default=0.5, gt=0, le=1, description="mean error, relative to the larger of both")
    predictions: int = Field(default=5, ge=1, description="how many the mean is over")
    stale_seconds: float = Field(default=300.0, gt=0)


class PolicySettings(Written):
    """Scheduling of a burst. Names are those of docs/rules.md."""

    name: PolicyName = "waterlevel"
    supply_fraction: float = Field(default=0.5, ge=0, le=1, description="of B; supply a cell must see before it joins")
    hold_seconds: float = Field(default=2.0, ge=0, description="how long supply must hold without a break")
    cooldown_seconds: float = Field(default=15.0, ge=0, description="after a move that was rolled back")
    in_flight_depth: int = Field(default=2, ge=1, description="micro-steps emitted ahead per training cell")
    streaming: bool = Field(default=True, description="false: nothing is trained before the batch has all its groups")
    shuffle: bool = Field(
        default=False, description="without streaming: a burst's groups go to its steps at random, once all are ready"
    )
    split: int | None = Field(
        default=None, ge=1, description="training cells of the policies that hold a split; null: half of the cells"
    )
    bounds: Bounds = Field(default=Bounds(), description="narrower than those of the fleet")
    throughput: ThroughputSettings = ThroughputSettings()
    safe_mode: SafeModeSettings = SafeModeSettings()

    @model_validator(mode="after")
    def _shuffles_only_what_it_has(self) -> "PolicySettings":
        if self.shuffle and self.streaming:
            raise ValueError("shuffle: needs streaming = false, a stream has no order to shuffle beforehand")
        return self

    def misfit(self, cells: int) -> str:
        """What cannot be with so many cells, the field named; empty when it can."""
        if self.split is not None and self.split >= cells > 1:
            return f"policy.split: {self.split} leaves none of {cells} cells to rollout"
        if self.bounds.min_rollout_cells >= cells:
            return f"policy.bounds.min_rollout_cells: {self.bounds.min_rollout_cells} leaves none of {cells} to train"
        if self.bounds.min_training_cells > cells:
            return f"policy.bounds.min_training_cells: {self.bounds.min_training_cells} of {cells} cells"
        return ""
