"""How an execution ended, from what the runner saw and what the harness says: pure."""

from harness_adapters.protocol import HarnessOutcome
from infra.processes.capture import plain_text
from infra.processes.job import Result
from workflows.messages.execution import EndReason, HarnessRun

_OURS = {
    "wall_limit": EndReason.WALL_LIMIT,
    "cancelled": EndReason.CANCELLED,
    "process_limit": EndReason.CRASHED,
    "memory_limit": EndReason.CRASHED,
    "runner_lost": EndReason.CRASHED,
    "unstartable": EndReason.NEVER_RAN,
}
"""Ends that the host decided or saw; they outrank what the harness says."""
_TELLING = 6
"""A shorter beginning of a secret tells nothing."""


def harness_run(result: Result, outcome: HarnessOutcome | None, *, model_calls: int, call_limit: int) -> HarnessRun:
    """What is reported of a harness that ended. `model_calls` is the proxy's count, the one that binds."""
    detail: list[str] = []
    if result.end in _OURS:
        end = _OURS[result.end]
        detail += [result.end.replace("_", " "), result.detail]
    elif outcome is None:
        end = EndReason.EXITED if result.exit_code == 0 else EndReason.CRASHED
    else:
        end = outcome.end
        detail.append(outcome.detail)
    if end in (EndReason.CRASHED, EndReason.EXITED) and result.end == "exited" and model_calls >= call_limit:
        end = EndReason.CALL_LIMIT
    if result.left_over:
        detail.append(f"{result.left_over} background processes ended")
    if result.survivors:
        detail.append(f"{result.survivors} processes could not be ended")
    return HarnessRun(
        end=end,
        exit_code=result.exit_code,
        seconds=result.seconds,
        model_calls=model_calls,
        detail=plain_text("; ".join(part for part in detail if part)),
    )


def without_secret(text: str, secret: str) -> str:
    """`text` with `secret` blotted out, also where the end of `text` was cut off in the middle of it."""
    if not secret:
        return text
    text = text.replace(secret, "<secret>")
    whole = text.removesuffix("…")
    for length in range(len(secret) - 1, _TELLING - 1, -1):
        if whole.endswith(secret[:length]):
            return f"{whole[:-length]}<secret>"
    return text
