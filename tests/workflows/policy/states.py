"""Policy states for tests, by what differs from a quiet one."""

from typing import Any

from workflows.messages.fleet import CellRole
from workflows.policy.state import BatchView, CellView, PolicyState


def cell(index: int, role: CellRole = CellRole.ROLLOUT, *, slots: int = 4, **more: Any) -> CellView:
    """A cell; in rollout it serves unless told otherwise."""
    return CellView(index=index, role=role, slots=slots, **{"serving": role is CellRole.ROLLOUT, **more})


def state(*cells: CellView, work: int = 0, ready: int = 4, needed: int | None = 4, **more: Any) -> PolicyState:
    """Three cells in rollout, B = 4, an open batch, supply for everybody, no hold; `work` is w."""
    values: dict[str, Any] = {
        "now": 100.0,
        "dispatched": 50 + work,
        "launched": 50 + work,
        "finished": 50,
        "cells": cells or tuple(cell(index) for index in range(3)),
        "ready_unassigned": ready,
        "batch": None if needed is None else BatchView(batch="b", needed=needed),
        "groups_per_step": 4,
        "supply_fraction": 0.5,
        "hold_seconds": 0.0,
    }
    return PolicyState(**(values | more))
