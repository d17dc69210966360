"""One policy, one workload, one stack: bring it up, run the campaign, read off what came of it."""

import asyncio
import hashlib
import itertools
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, select
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from infra.checkpoints.code_version import code_version
from infra.records.schema import batches, calls, executions, ledger, segments, transitions
from infra.settings.fleet import Fleet
from infra.simulator.recorded import RecordedRun, read_run
from infra.temporal.client import ask
from workers.bench.schedulers.host import components
from workers.bench.schedulers.machine import Clock
from workers.bench.schedulers.stage import CAMPAIGN, RUN, campaign_of, fleet_of, write_model, write_tasks
from workers.bench.schedulers.workload import Workload
from workers.supervisor import LocalStack
from workflows.messages import ids
from workflows.messages.base import Message
from workflows.messages.burst import CampaignSpec
from workflows.messages.errors import Transient
from workflows.messages.fleet import CellRole
from workflows.messages.policies import PolicySettings

SETTLE_SECONDS = 120.0
LOOK_SECONDS = 2.0
REPORT_SECONDS = 10.0

Told = Callable[[str], None]


class Contestant(Message):
    """A policy as it is set for the comparison."""

    label: str
    policy: PolicySettings


class Measured(Message):
    """`seconds`: from the campaign's start to its last update; `wall_seconds`: to its end, publish included.

    `moves`: cells that went from rollout to training; `planned_moves`: moves for a predicted gain, by phase of the
    workload. `requests_moved`: answers that went on at another engine. `busy_share`: of all processors, whoever used
    them without giving way. Two results with the same `workload_sha256`, `policy_sha256` and `code_version` are of the
    same thing.
    """

    workload: str
    label: str
    policy: str
    seed: int
    split: int | None
    seconds: float
    wall_seconds: float
    update_seconds: tuple[float, ...]
    staleness: float
    executions: int
    submitted: int
    calls: int
    moves: int
    returns: int
    move_seconds: float
    return_seconds: float
    planned_moves: tuple[int, ...]
    requests_moved: int
    busy_share: float
    start_seconds: float
    workload_sha256: str = ""
    policy_sha256: str = ""
    code_version: str = ""
    slower: float = 1.0


@dataclass(frozen=True)
class Ran:
    """What was measured, and the run as the simulator reads it."""

    measured: Measured
    recorded: RecordedRun


async def run_one(workload: Workload, contestant: Contestant, folder: Path, told: Told) -> Ran:
    """Run `workload` under one policy in a fresh stack below `folder`. Raises Transient when the stack never works."""
    shutil.rmtree(folder, ignore_errors=True)
    fleet = fleet_of(workload, write_model(folder / "model"))
    tasks = write_tasks(folder / "tasks", workload)
    campaign = campaign_of(workload, tasks, contestant.policy)
    version, began = code_version(), time.monotonic()
    async with LocalStack(fleet, folder / "run", components=components, watch_memory=False) as stack:
        await stack.ready()
        await _all_serving(stack.client, workload.cells)
        started_in = time.monotonic() - began
        told(f"{contestant.label}, seed {workload.seed}: the stack serves after {started_in:.0f} s")
        clock, started = Clock.now(), time.time()
        await _campaign(stack.client, stack.records, campaign, workload, told)
        wall, busy = time.time() - started, Clock.now().share_since(clock)
        return _ran(stack.records, fleet, workload, contestant, started, wall, busy, started_in, version)


def sha256_of(settings: Message) -> str:
    """Of a workload or a policy: of all its values."""
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()


def is_of(known: Measured, workload: Workload, policy: PolicySettings, version: str) -> bool:
    """Whether `known` is what a run of these would measure. Of changed or unknown code nobody can tell."""
    wanted = sha256_of(workload), sha256_of(policy), version
    is_known = version != "unknown" and not version.endswith("+changes")
    return is_known and (known.workload_sha256, known.policy_sha256, known.code_version) == wanted


async def _campaign(client: Client, records: Engine, campaign: CampaignSpec, workload: Workload, told: Told) -> None:
    """Start it and follow it to its end, telling how far it is."""
    limit = most_seconds(workload)
    handle = await client.start_workflow(
        "Campaign",
        campaign,
        id=ids.campaign_id(RUN, CAMPAIGN),
        task_queue=ids.WORKFLOW_QUEUE,
        execution_timeout=timedelta(seconds=limit),
    )
    started = said = time.monotonic()
    while (await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
        now = time.monotonic()
        if now - said >= REPORT_SECONDS:
            said = now
            told(f"  {now - started:4.0f} s: {_progress(records, workload)}")
        await asyncio.sleep(LOOK_SECONDS)
    await handle.result()


def most_seconds(workload: Workload) -> float:
    """Longer than any policy may take: every group after the other, trained by one cell, and room to spare."""
    work = sum(one.seconds(workload.tokens_per_second) for group in workload.groups for one in group)
    training = sum(workload.training_seconds(group) for group in range(len(workload.groups)))
    return 300 + workload.longest_seconds * workload.bursts + 2 * work / workload.slots + training


def _progress(records: Engine, workload: Workload) -> str:
    with records.connect() as connection:
        ended = connection.scalar(select(func.count()).where(executions.c.ended_at.is_not(None)))
        updates = connection.scalar(select(func.count()).where(batches.c.committed_at.is_not(None)))
    return f"{ended} of {workload.executions} executions, {updates} of {workload.updates} updates"


async def _all_serving(client: Client, cells: int) -> None:
    """Every cell has reported that it serves; a stack is ready a little earlier."""
    deadline = time.monotonic() + SETTLE_SECONDS
    waiting = set(range(cells))
    while waiting and time.monotonic() < deadline:
        for cell in sorted(waiting):
            try:
                handle = client.get_workflow_handle(ids.cell_workflow_id(RUN, cell))
                state = await ask(handle, "state", dict[str, Any])
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                continue
            if state["role"] == CellRole.ROLLOUT.value:
                waiting.discard(cell)
        await asyncio.sleep(0.2)
    if waiting:
        raise Transient(f"cells {sorted(waiting)} do not serve after {SETTLE_SECONDS:g} s")


def _ran(
    records: Engine,
    fleet: Fleet,
    workload: Workload,
    contestant: Contestant,
    started: float,
    wall: float,
    busy: float,
    started_in: float,
    version: str,
) -> Ran:
    with records.connect() as connection:
        done = connection.execute(
            select(batches).where(batches.c.committed_at.is_not(None)).order_by(batches.c.committed_at)
        ).all()
        ends = connection.execute(select(executions.c.end_reason, func.count()).group_by(executions.c.end_reason)).all()
        moved = connection.execute(select(transitions).where(transitions.c.result == "done")).all()
        asked = connection.scalar(select(func.count()).select_from(calls)) or 0
        parts = connection.scalar(select(func.count()).select_from(segments)) or 0
        planned = connection.execute(select(ledger.c.at, ledger.c.reasons).where(ledger.c.kind == "move")).all()
    commits = [row.committed_at for row in done]
    forth = [row.ended_at - row.started_at for row in moved if row.direction == "to_training"]
    back = [row.ended_at - row.started_at for row in moved if row.direction == "to_rollout"]
    gains = [row.at for row in planned if "gain" in row.reasons]
    measured = Measured(
        workload=workload.name,
        label=contestant.label,
        policy=contestant.policy.name,
        seed=workload.seed,
        split=contestant.policy.split,
        seconds=round(commits[-1] - started, 2),
        wall_seconds=round(wall, 2),
        update_seconds=tuple(round(at - started, 2) for at in commits),
        staleness=round(staleness_of(records), 4),
        executions=sum(count for _, count in ends),
        submitted=sum(count for reason, count in ends if reason == "submitted"),
        calls=asked,
        moves=len(forth),
        returns=len(back),
        move_seconds=_mean(forth),
        return_seconds=_mean(back),
        planned_moves=by_phase(gains, [commits[update - 1] for update in workload.phases]),
        requests_moved=parts - asked,
        busy_share=round(busy, 3),
        start_seconds=round(started_in, 1),
        workload_sha256=sha256_of(workload),
        policy_sha256=sha256_of(contestant.policy),
        code_version=version,
        slower=workload.slower,
    )
    return Ran(measured, read_run(records, fleet))


def staleness_of(records: Engine) -> float:
    """Group-weighted mean of the version at the update minus the version at dispatch."""
    with records.connect() as connection:
        versions = {row.batch: row.version_before for row in connection.execute(select(batches))}
        dispatched = {
            (row.burst, row.group_index): row.dispatch_version for row in connection.execute(select(executions))
        }
        consumed = [
            (versions[row.batch], name.rsplit("/", 1))
            for row in connection.execute(select(batches).where(batches.c.committed_at.is_not(None)))
            for name in row.groups or ()
        ]
    ages = [version - dispatched[(burst, int(group))] for version, (burst, group) in consumed]
    return sum(ages) / max(1, len(ages))


def by_phase(moments: list[float], changes: list[float]) -> tuple[int, ...]:
    """How many of `moments` fall into each phase; `changes`: when the phases after the first begin."""
    edges = [float("-inf"), *changes, float("inf")]
    return tuple(sum(low <= moment < high for moment in moments) for low, high in itertools.pairwise(edges))


def _mean(seconds: list[float]) -> float:
    return round(sum(seconds) / len(seconds), 3) if seconds else 0.0
