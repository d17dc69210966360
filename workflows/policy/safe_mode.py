"""Safe mode: when moving has become a risk, the last valid allocation is frozen and training goes on.

Entered after repeated failed moves, repeated regretted moves (they made things worse than they were predicted to),
a predictor that keeps being wrong, stale telemetry, or by an operator. Left by an operator alone.

A valid allocation is one in which the core trains and something serves; `split` says how many cells train in it. In
safe mode that split is held like the `async` policy's, so a fleet that was caught with everybody in rollout still
gets its core back into training, and a cell that was on its way into training goes back between two batches. A single
cell cannot hold a split; it goes on switching as a whole.
"""

from enum import StrEnum

from pydantic import Field

from workflows.messages.base import Message
from workflows.messages.fleet import CellRole
from workflows.messages.policies import SafeModeSettings
from workflows.policy.state import Decision, PolicyState, Reason, Verdict


class Cause(StrEnum):
    FAILED_MOVES = "failed_moves"
    REGRETTED_MOVES = "regretted_moves"
    WRONG_PREDICTOR = "wrong_predictor"
    STALE_TELEMETRY = "stale_telemetry"
    OPERATOR = "operator"


class SafeMode(Message):
    """The state. `cause` None: normal operation. `split`: training cells of the last valid allocation."""

    cause: Cause | None = None
    detail: str = ""
    since: float | None = None
    split: int = Field(default=1, ge=1)
    failed: int = 0
    regretted: int = 0
    errors: tuple[float, ...] = ()

    @property
    def frozen(self) -> bool:
        return self.cause is not None


class MoveOutcome(Message):
    """A move that is over. Gains in seconds per iteration; None where the policy predicts nothing."""

    done: bool
    predicted_gain_seconds: float | None = None
    realised_gain_seconds: float | None = None


def after_move(mode: SafeMode, outcome: MoveOutcome, settings: SafeModeSettings, now: float) -> SafeMode:
    """The state after a move; a success ends the streak of failures, a gain that of regrets."""
    failed = 0 if outcome.done else mode.failed + 1
    mode = mode.model_copy(update={"failed": failed})
    if failed >= settings.failed_moves:
        return _enter(mode, Cause.FAILED_MOVES, f"{failed} moves failed in a row", now)
    predicted, realised = outcome.predicted_gain_seconds, outcome.realised_gain_seconds
    if not outcome.done or predicted is None or realised is None:
        return mode
    regretted = mode.regretted + 1 if realised < settings.regret_share * predicted else 0
    error = abs(realised - predicted) / max(abs(predicted), abs(realised), 1e-9)
    errors = (*mode.errors, error)[-settings.predictions :]
    mode = mode.model_copy(update={"regretted": regretted, "errors": errors})
    if regretted >= settings.regretted_moves:
        return _enter(mode, Cause.REGRETTED_MOVES, f"{regretted} moves in a row made it worse", now)
    mean = sum(errors) / len(errors)
    if len(errors) == settings.predictions and mean > settings.prediction_error:
        return _enter(mode, Cause.WRONG_PREDICTOR, f"predictions are off by {mean:.0%} on average", now)
    return mode


def after_telemetry(mode: SafeMode, age_seconds: float, settings: SafeModeSettings, now: float) -> SafeMode:
    """The state after a look at the telemetry, `age_seconds` old."""
    if age_seconds <= settings.stale_seconds:
        return mode
    return _enter(mode, Cause.STALE_TELEMETRY, f"telemetry is {age_seconds:.0f} s old", now)


def after_operator(mode: SafeMode, *, freeze: bool, detail: str, now: float) -> SafeMode:
    """The operator's word. Leaving forgets what led into it; the split of the last valid allocation stays known."""
    if freeze:
        return _enter(mode, Cause.OPERATOR, detail, now)
    return SafeMode(split=mode.split)


def after_allocation(mode: SafeMode, state: PolicyState) -> SafeMode:
    """Remember the allocation if it is valid and nothing is on its way; a frozen one is not replaced."""
    roles = [cell.role for cell in state.cells]
    settled = not any(role in (CellRole.TO_TRAINING, CellRole.TO_ROLLOUT) for role in roles)
    serves = state.capacity > 0
    if mode.frozen or not settled or not serves or roles[0] is not CellRole.TRAINING:
        return mode
    split = sum(role is CellRole.TRAINING for role in roles)
    return mode if split == mode.split else mode.model_copy(update={"split": split})


def allocation_text(mode: SafeMode) -> str:
    """What is held, in words. Cells that train beyond it when it was frozen do so until their batch is over."""
    return f"at least {mode.split} {'cell trains' if mode.split == 1 else 'cells train'} from now on"


def explained(mode: SafeMode, decision: Decision) -> Decision:
    """A decision taken in safe mode says so; one that changes nothing is a refusal for that reason."""
    detail = f"safe mode ({mode.cause}: {mode.detail}); {decision.detail}"
    if decision.verdict is Verdict.MOVE:
        return decision.model_copy(update={"detail": detail})
    return decision.model_copy(update={"detail": detail, "reason": Reason.SAFE_MODE})


def _enter(mode: SafeMode, cause: Cause, detail: str, now: float) -> SafeMode:
    if mode.frozen:
        return mode
    return mode.model_copy(update={"cause": cause, "detail": detail, "since": now})
