"""`gyre status`: where a run stands, from its records and from what its workflows say about themselves."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Connection, Engine, case, func, select
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError

from infra.records.database import open_database
from infra.records.schema import batches, calls, engines, executions, groups, transitions, updates
from infra.report.alarms import alarms
from infra.settings.run import RunManifest
from infra.temporal.client import ask, connect, stuck, stuck_on_own
from infra.update_metrics import in_words
from workers.cli.runs import find_run
from workers.supervisor.hints import resume_command
from workers.supervisor.run_folder import is_supervised
from workflows.books import SchedulerState
from workflows.cell import CellState
from workflows.messages.burst import Purpose
from workflows.messages.errors import StateUnreadable, Transient
from workflows.messages.execution import Outcome
from workflows.messages.ids import cell_workflow_id, scheduler_id

_ANSWER_SECONDS = 5.0
_STUCK_SHOWN = 5
_CONNECT_SECONDS = 2.0


def status(*, run_dir: Path | None = None, json_: bool = False) -> None:
    """Show where a run stands.

    Parameters
    ----------
    run_dir
        Folder (or name) of the run; without it the one last started.
    json_
        Print it as JSON.
    """
    manifest = find_run(run_dir)
    engine = open_database(manifest.database_url, create=True)
    runs = is_supervised(manifest.folder)
    summary = {"run": manifest.run, "folder": manifest.run_dir, "running": runs, "records": from_records(engine)}
    engine.dispose()
    # A run that was moved aside may name a port that another run has now: nobody is asked for a run that stands still.
    summary["workflows"] = asyncio.run(from_workflows(manifest)) if runs else {}
    if json_:
        print(json.dumps(summary, indent=2))
    else:
        _show(summary, Console())


def from_records(engine: Engine) -> dict[str, Any]:
    """Counts and newest entries of the records; works also while the stack is down, then as they were left."""
    by_state = select(executions.c.state, executions.c.outcome, func.count()).group_by(
        executions.c.state, executions.c.outcome
    )
    with engine.connect() as connection:
        newest = connection.execute(select(updates).order_by(updates.c.version.desc()).limit(1)).mappings().first()
        return {
            "executions": {
                f"{state}{f', {outcome}' if outcome else ''}": count
                for state, outcome, count in connection.execute(by_state)
            },
            "model_calls": connection.execute(select(func.count()).select_from(calls)).scalar_one(),
            "ready_groups": connection.execute(
                select(func.count()).select_from(groups).where(groups.c.batch.is_(None))
            ).scalar_one(),
            "open_batches": list(
                connection.execute(select(batches.c.batch).where(batches.c.committed_at.is_(None))).scalars()
            ),
            "version": newest["version"] if newest else None,
            "last_update": _last_update(connection),
            "published": bool(newest and newest["published_at"]),
            "bursts": _bursts(connection),
            "alarms": alarms(connection),
            "role_changes": connection.execute(select(func.count()).select_from(transitions)).scalar_one(),
            "engines": [
                {"engine": row["engine"], "door": row["door"], "version": row["version"], "slots": row["slots"]}
                for row in connection.execute(select(engines).order_by(engines.c.engine)).mappings()
            ],
        }


def _bursts(connection: Connection) -> list[str]:
    """What came of each burst so far, a line each: scores, groups, updates, and why there was none."""
    of = executions.c
    valid = of.outcome == Outcome.SCORED
    scores = (
        select(of.burst, of.purpose, func.count(), func.sum(case((valid, 1), else_=0)), func.avg(of.reward))
        .where(of.closed_at.is_not(None))
        .group_by(of.burst, of.purpose)
        .order_by(func.min(of.prepared_at))
    )
    updated = batches.c.version_after > batches.c.version_before
    made = select(batches.c.burst, func.count()).where(updated).group_by(batches.c.burst)
    updates_of = {row[0]: row[1] for row in connection.execute(made)}
    admitted: dict[str, Counter[str]] = {}
    for burst, reason, count in connection.execute(
        select(groups.c.burst, groups.c.no_signal, func.count()).group_by(groups.c.burst, groups.c.no_signal)
    ):
        admitted.setdefault(burst, Counter())[reason or ""] += count
    lines: list[str] = []
    for burst, purpose, closed, count, mean in connection.execute(scores):
        line = f"{burst}: {count or 0} of {closed} closed executions are valid"
        line += "" if mean is None else f", mean reward {mean:.3g}"
        if purpose == Purpose.TRAIN:
            line += f"; {updates_of.get(burst, 0)} updates"
            found = admitted.get(burst, Counter())
            line += f"; {found.total()} groups admitted" if found else ""
            without = [f"{number} {reason.replace('_', ' ')}" for reason, number in found.items() if reason]
            line += f", without signal: {', '.join(without)}" if without else ""
        lines.append(line)
    return lines


def _last_update(connection: Connection) -> dict[str, Any] | None:
    """Batch and measured figures of the newest optimizer step."""
    query = select(batches.c.batch, batches.c.metrics).where(batches.c.version_after > batches.c.version_before)
    row = connection.execute(query.order_by(batches.c.version_after.desc()).limit(1)).first()
    return None if row is None else {"batch": row.batch, "figures": row.metrics or {}}


async def from_workflows(manifest: RunManifest) -> dict[str, str]:
    """What the Scheduler and the Cells say now, a line each; where they cannot answer, why."""
    try:
        client = await connect(manifest, timeout_seconds=_CONNECT_SECONDS)
    except Transient as error:
        ours = manifest.fleet.temporal == "dev"
        return {"temporal": "does not answer: the stack is starting or stopping" if ours else f"not reachable: {error}"}
    scheduler = client.get_workflow_handle(scheduler_id(manifest.run))
    lines = {"scheduler": await _answer(_scheduler_line(scheduler, manifest))}
    indices = [cell.index for cell in manifest.fleet.cells if cell.index not in manifest.gone]
    cells = [client.get_workflow_handle(cell_workflow_id(manifest.run, index)) for index in indices]
    answers = await asyncio.gather(*(_answer(_cell_line(cell, manifest)) for cell in cells))
    lines |= {f"cell {index}": answer for index, answer in zip(indices, answers, strict=True)}
    waiting = await _answer(_stuck_line(client, manifest.run, manifest.code.workflows if manifest.code else None))
    return {"stuck": waiting, **lines} if waiting else lines


async def _stuck_line(client: Client, run: str, code: str | None) -> str:
    """`code`: the build id of the run's control worker, where it is known."""
    found = await stuck(client, run)
    shown, more = found[:_STUCK_SHOWN], len(found[_STUCK_SHOWN:])
    own = [name for name in shown if code and await stuck_on_own(client, name, code)]
    other = [name for name in shown if name not in own]
    lines = [
        f"{', '.join(own)}: this code wrote the history and cannot replay it; it stays so until it is reset "
        '(docs/operations.md, "A workflow that is stuck on its own history")'
        if own
        else "",
        f"{', '.join(other)}: this code cannot go on; nothing is lost, they wait for other code "
        '(docs/operations.md, "Deploying new code while a run lives")'
        if other
        else "",
        f"and {more} more" if more else "",
    ]
    return "\n".join(line for line in lines if line)


async def _answer(line: Awaitable[str]) -> str:
    try:
        return await asyncio.wait_for(line, _ANSWER_SECONDS)
    except TimeoutError:
        return f"no answer within {_ANSWER_SECONDS:g} s: its worker may be busy, or starting; `gyre up` shows which"
    except (RPCError, WorkflowQueryFailedError, StateUnreadable) as error:
        return f"no answer: {error}"


async def _scheduler_line(handle: WorkflowHandle[Any, Any], manifest: RunManifest) -> str:
    policy = await ask(handle, "policy_state", dict[str, Any])
    state = await ask(handle, "state", SchedulerState)
    slots = sum(cell["slots"] for cell in policy["cells"] if cell["serving"])
    burst = f"burst {state.burst.name}" if state.burst else "no burst"
    burst += f" ({state.burst.policy.name})" if state.burst else ""
    burst += f", SAFE MODE ({state.mode.cause}: {state.mode.detail})" if state.mode.frozen else ""
    queued = f", {len(state.waiting)} waiting" if state.waiting else ""
    return (
        f"{burst}{queued}; dispatched {policy['dispatched']}, launched {policy['launched']}, "
        f"finished {policy['finished']}; waterlevel {policy['dispatched'] - policy['finished']} of {slots} slots; "
        f"{policy['ready_unassigned']} ready groups; "
        f"version {state.weights.version}{_late(state)}{await _blocked(handle, manifest)}"
    )


def _late(state: SchedulerState) -> str:
    """Reclaimed cells that are not gone at their deadline, a line each."""
    return "".join(f"\nLATE: cell {cell.spec.index}: {cell.late}" for cell in state.cells if cell.late)


async def _cell_line(handle: WorkflowHandle[Any, Any], manifest: RunManifest) -> str:
    state = await ask(handle, "state", CellState)
    boot = f", boot {state.boot.boot_epoch}" if state.boot else ""
    return f"{state.role.value}{boot}, lease {state.lease}{await _blocked(handle, manifest)}"


async def _blocked(handle: WorkflowHandle[Any, Any], manifest: RunManifest) -> str:
    """Steps that wait for a person, and what that person types."""
    steps = await ask(handle, "blocked_steps", list[str])
    return f"\nBLOCKED at {'; '.join(steps)}\nresume: {resume_command(manifest, handle.id)}" if steps else ""


def _show(summary: dict[str, Any], console: Console) -> None:
    table = Table(title=f"run {summary['run']} in {summary['folder']}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if not summary["running"]:
        table.add_row("stack", "not running (`gyre up` starts it); below is what was recorded last")
    for name, value in summary["records"].items():
        if name == "alarms":
            for line in value:
                table.add_row("[red]ALARM[/]", f"[red]{escape(line)}[/]")
            continue
        shown = f"{value['batch']}: {in_words(value['figures'])}" if name == "last_update" and value else _text(value)
        label = "engines, then" if name == "engines" and not summary["running"] else name.replace("_", " ")
        table.add_row(label, escape(shown))
    for name, value in summary["workflows"].items():
        table.add_row(name, escape(value))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return "none" if value is None else str(value)
