"""What the web UI shows of a run: the Scheduler's books as a short table."""

from collections.abc import Mapping, Sequence

from workflows.messages.fleet import CellRole, MoveCost
from workflows.messages.transition import Direction
from workflows.policy.safe_mode import SafeMode
from workflows.policy.state import CellView, PolicyState

_NORMAL = SafeMode()
_FREE: Mapping[Direction, MoveCost] = {}
_NOBODY: Mapping[int, str] = {}


def overview(
    state: PolicyState,
    *,
    version: int,
    burst: str | None,
    waiting: Sequence[str],
    ready: int,
    mode: SafeMode = _NORMAL,
    costs: Mapping[Direction, MoveCost] = _FREE,
    late: Mapping[int, str] = _NOBODY,
) -> str:
    """A Markdown table. `version`: the published one; `ready`: groups admitted and not consumed; `late`: cells that are
    not gone at their deadline, and why."""
    running, queued = state.launched - state.finished, state.dispatched - state.launched
    rows = {
        "burst": _joined(burst or "none", f"waiting: {', '.join(waiting)}" if waiting else ""),
        "waterlevel": f"{state.waterlevel} ({running} running, {queued} queued) on {state.capacity} slots",
        "cells": ", ".join(_cell(cell, state.core) for cell in state.cells),
        "ready groups": _joined(f"{ready}, {state.ready_unassigned} unassigned", _batch(state)),
        "published version": str(version),
        "executions": f"{state.dispatched} dispatched, {state.launched} launched, {state.finished} finished",
    }
    if costs:
        rows["role changes"] = ", ".join(
            f"{direction.value.replace('_', ' ')} {cost.mean_seconds:.1f} s" for direction, cost in costs.items()
        )
    if late:
        told = [f"cell {cell} is not gone at its deadline: {why}" for cell, why in late.items()]
        rows["late"] = "; ".join(told).replace("|", "/").replace("\n", " ")
    if mode.frozen:
        rows["safe mode"] = f"{mode.cause}: {mode.detail}; {mode.split} cells train until `leave_safe_mode`"
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def _batch(state: PolicyState) -> str:
    if state.batch is None:
        return ""
    burst, step = state.batch.batch.rsplit("/", 2)[-2:]
    return f"step {step} of {burst} needs {state.batch.needed} more"


def _cell(cell: CellView, core: int) -> str:
    return f"{cell.index} {_role(cell)}{' (core)' if cell.index == core else ''}"


def _role(cell: CellView) -> str:
    """The role as people say it; a cell in rollout that does not serve yet is loading."""
    if cell.role is CellRole.ROLLOUT and not cell.serving:
        return "loading"
    return cell.role.value.replace("_", " ")


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
