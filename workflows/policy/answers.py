"""Short ways to word a decision, and the refusals that all policies share."""

from collections.abc import Sequence

from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction
from workflows.policy.bounds import forbidden
from workflows.policy.state import Decision, PolicyState, Reason, Verdict


def refuse(cell: int | None, reason: Reason, detail: str, recheck_seconds: float | None = None) -> Decision:
    return Decision(verdict=Verdict.REFUSE, cell=cell, reason=reason, detail=detail, recheck_seconds=recheck_seconds)


def move(
    state: PolicyState,
    movers: Sequence[int],
    reason: Reason,
    detail: str,
    direction: Direction = Direction.TO_TRAINING,
) -> Decision:
    """A move of one or more cells, unless the fleet's bounds forbid it. `movers` holds at least one cell."""
    limit = forbidden(state, movers, direction)
    if limit:
        return refuse(movers[0], Reason.BOUNDS, limit)
    return Decision(
        verdict=Verdict.MOVE,
        cell=movers[0],
        together=tuple(movers[1:]),
        reason=reason,
        detail=detail,
        direction=direction,
    )


def core_absence(state: PolicyState) -> Decision | None:
    """The refusal when the core cannot train: nobody joins a batch that it does not lead."""
    core = state.cells[0]
    if core.role is CellRole.PARKED:
        return refuse(core.index, Reason.CORE_PARKED, "the core is parked: training waits")
    if core.role in (CellRole.LOST, CellRole.STARTING):
        return refuse(core.index, Reason.CORE_ABSENT, f"the core is {core.role.value}")
    return None
