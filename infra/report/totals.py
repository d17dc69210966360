"""Did elasticity pay, and what did it cost: the ledger's totals.

Gained are the cell-seconds of micro-steps done by cells whose slots nothing needed meanwhile: w <= C_R of those that
were left in rollout. Micro-steps done while work waited for slots are counted apart: they were paid for with rollout.
Spent are the cell-seconds of the changes themselves; what harnesses and KV bore of it stands beside, in units of its
own. Cells that only reload for a publish do so under any policy, so that is no cost of moving.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from infra.report import levels, usage
from infra.report.changes import ROLE_CHANGES, Change
from infra.report.cuts import Moved
from infra.report.moves import Move
from infra.report.reading import Records


@dataclass(frozen=True)
class Totals:
    """Cell-seconds unless a name says otherwise. Pauses and requests are those of role changes alone.

    `trained_free`, `trained_full`: micro-steps that counted, while the slots left in rollout covered the work, and
    while they did not; `trained_in_vain`: those that did not count (or not yet). `broken_requests`: gone on elsewhere
    without a transition, because an engine died or broke off.
    """

    seconds: float
    decisions: dict[str, int]
    refusals: dict[str, int]
    results: dict[str, int]
    trained_free: float
    trained_full: float
    trained_in_vain: float
    updating: float
    training_waited: float
    serving: float
    rollout_idle: float
    rollout_unused: float
    changing: dict[str, float]
    publishing: float
    parked: float
    requests_moved: int
    executions_rerouted: int
    pause_seconds: float
    longest_pause_seconds: float
    kv_tokens_reused: int
    kv_tokens_recomputed: int
    kv_bytes: int
    weights_bytes: int
    publish_pause_seconds: float
    broken_requests: int
    predictions: int
    mean_prediction_error: float | None

    @property
    def spent(self) -> float:
        """Cell-seconds of role changes."""
        return sum(self.changing.values())

    @property
    def net(self) -> float:
        """Cell-seconds of training gained, less those of the changes."""
        return self.trained_free - self.spent

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        if not any(self.results.values()):
            return "No cell has changed its role, so elasticity has cost nothing and gained nothing."
        word = "paid" if self.net > 0 else "did not pay"
        return (
            f"Elasticity {word}: {self.trained_free:.1f} cell-seconds of training on cells whose slots nothing needed, "
            f"for {self.spent:.1f} cell-seconds of changing roles (net {self.net:+.1f}), "
            f"{self.executions_rerouted} executions rerouted, {self.requests_moved} requests of them in mid-answer "
            f"with {self.pause_seconds:.1f} s of pauses in all ({self.longest_pause_seconds:.1f} s the longest), and "
            f"{self.kv_tokens_recomputed} tokens recomputed."
        )


def totals(
    records: Records,
    moves: Sequence[Move],
    moved: Mapping[str, Moved],
    unexplained: int,
    cells: Sequence[usage.CellUse],
) -> Totals:
    """The totals of a run. `moved`: what each transition moved; `unexplained`: requests no transition moved."""
    roles, busy = records.roles(), usage.Busy(records)
    closed = [fact.closed_at for fact in records.executions if fact.closed_at is not None]
    covered = levels.free(
        levels.waterlevel(records.entries, closed), levels.capacity(roles, records.slots), records.end
    )
    trained, trained_free = usage.counted(roles, busy), usage.counted(roles, busy, covered)
    changes = [change for change in records.changes if change.direction in ROLE_CHANGES]
    publishes = [change for change in records.changes if change.direction == "publish"]
    of_moves = [moved[change.transition] for change in changes if change.transition in moved]
    errors = [move.prediction_error for move in moves if move.prediction_error is not None]
    return Totals(
        seconds=records.end - records.begin,
        decisions=dict(Counter(entry.kind for entry in records.entries if entry.kind != "refuse")),
        refusals=dict(Counter(entry.reason for entry in records.entries if entry.kind == "refuse").most_common()),
        results=dict(Counter(f"{change.direction} {change.result}".strip() for change in changes)),
        trained_free=trained_free,
        trained_full=max(0.0, trained - trained_free),
        trained_in_vain=max(0.0, sum(cell.training for cell in cells) - trained),
        updating=sum(cell.updating for cell in cells),
        training_waited=sum(cell.waiting for cell in cells),
        serving=sum(cell.serving for cell in cells),
        rollout_idle=sum(cell.idle for cell in cells),
        rollout_unused=sum(cell.unused for cell in cells),
        changing={name: _seconds(changes, name) for name in ROLE_CHANGES},
        publishing=sum(cell.publishing for cell in cells),
        parked=sum(cell.parked for cell in cells),
        requests_moved=sum(found.requests for found in of_moves),
        executions_rerouted=sum(change.figure("executions_rerouted") for change in changes),
        pause_seconds=sum(found.pause_seconds for found in of_moves),
        longest_pause_seconds=max((found.longest_pause_seconds for found in of_moves), default=0.0),
        kv_tokens_reused=sum(found.kv_reused for found in of_moves),
        kv_tokens_recomputed=sum(found.kv_recomputed for found in of_moves),
        kv_bytes=sum(change.figure("kv_bytes") for change in changes),
        weights_bytes=sum(change.figure("weights_bytes") for change in changes),
        publish_pause_seconds=sum(moved[c.transition].pause_seconds for c in publishes if c.transition in moved),
        broken_requests=unexplained,
        predictions=len(errors),
        mean_prediction_error=fmean(errors) if errors else None,
    )


def _seconds(changes: Sequence[Change], direction: str) -> float:
    return sum(change.seconds for change in changes if change.direction == direction)
