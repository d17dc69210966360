"""What a role change of an idle cell costs beside its real work.

A move is a workflow; its history says when each step was scheduled, started and completed. Control plane is the whole
move minus the time that memory, weights and KV steps were really at work (started to completed): so it holds every
wait for a worker, every workflow task, every call to the proxy and every signal.
"""

import asyncio
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from infra.settings.fleet import Fleet
from infra.temporal.client import ask
from workers.supervisor import LocalStack
from workflows.messages import ids
from workflows.messages.errors import Transient
from workflows.messages.fleet import CellRole
from workflows.messages.transition import Direction, MoveCell

WORK = frozenset(
    {
        "retain_kv",
        "pull_kv",
        "release_kv",
        "release_rollout",
        "restore_training",
        "release_training",
        "resume_rollout",
        "load_weights",
        "verify_engine",
    }
)
"""Steps that work on memory, weights or KV."""

SETTLE_SECONDS = 120.0


@dataclass(frozen=True)
class MoveCost:
    """Seconds of one move: all of it, and what was not work on memory, weights or KV."""

    direction: str
    total: float
    control: float


async def measure(fleet: Fleet, run_dir: Path, *, rounds: int, cell: int = 1) -> list[MoveCost]:
    """Move an idle satellite to training and back, `rounds` times. The first round warms up and does not count."""
    costs: list[MoveCost] = []
    async with LocalStack(fleet, run_dir) as stack:
        await stack.ready()
        await _settled(stack.client, fleet.run, cell, CellRole.ROLLOUT)
        for number in range(rounds + 1):
            there_and_back = await _round(stack.client, fleet.run, cell, f"bench/{number}")
            if number:
                costs += there_and_back
    return costs


async def _round(client: Client, run: str, cell: int, name: str) -> list[MoveCost]:
    """Into training by our word; back by the Scheduler's, which sends home a cell that trains without a burst."""
    handle = client.get_workflow_handle(ids.cell_workflow_id(run, cell))
    state = await ask(handle, "state", dict[str, Any])
    await handle.signal("move", MoveCell(move=name, direction=Direction.TO_TRAINING, weights=state["weights"]))
    await _settled(client, run, cell, CellRole.ROLLOUT, lease=state["lease"] + 2)
    costs: list[MoveCost] = []
    for lease, direction in ((1, Direction.TO_TRAINING), (2, Direction.TO_ROLLOUT)):
        transition = client.get_workflow_handle(ids.transition_id(run, cell, state["lease"] + lease))
        history = await transition.fetch_history()
        costs.append(cost_of(direction.value, history.events))
    return costs


def cost_of(direction: str, events: Iterable[HistoryEvent]) -> MoveCost:
    """Costs from a transition's history; a retried step counts with its last attempt as work."""
    listed = list(events)
    scheduled = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name
        for event in listed
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }
    started = {
        event.event_id: event for event in listed if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    }
    work = 0.0
    for event in listed:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            if scheduled[done.scheduled_event_id] in WORK:
                work += _seconds(event) - _seconds(started[done.started_event_id])
    total = _seconds(listed[-1]) - _seconds(listed[0])
    return MoveCost(direction, total, total - work)


async def _settled(client: Client, run: str, cell: int, role: CellRole, *, lease: int = 0) -> None:
    handle = client.get_workflow_handle(ids.cell_workflow_id(run, cell))
    deadline = time.monotonic() + SETTLE_SECONDS
    found = "unknown"
    while time.monotonic() < deadline:
        try:
            state = await ask(handle, "state", dict[str, Any])
        except RPCError as error:  # the Scheduler has not started it yet
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        else:
            if state["role"] == role.value and state["lease"] >= lease:
                return
            found = str(state["role"])
        await asyncio.sleep(0.2)
    raise Transient(f"cell {cell} is {found}, not {role.value}, after {SETTLE_SECONDS:g} s")


def figures(costs: list[MoveCost]) -> dict[str, Any]:
    """Medians, smallest and largest per direction, in seconds."""
    found: dict[str, Any] = {}
    for direction in sorted({cost.direction for cost in costs}):
        mine = [cost for cost in costs if cost.direction == direction]
        for name in ("control", "total"):
            values = [getattr(cost, name) for cost in mine]
            found[f"{direction}_{name}_seconds"] = {
                "median": round(statistics.median(values), 3),
                "min": round(min(values), 3),
                "max": round(max(values), 3),
            }
        found[f"{direction}_moves"] = len(mine)
    return found


def _seconds(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e9
