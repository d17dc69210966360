"""`gyre status`: where a run stands, from its records and from what its workflows say about themselves."""

import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine, func, select
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from infra.records.database import open_database
from infra.records.schema import batches, calls, engines, executions, groups, transitions, updates
from infra.settings.run import RunManifest
from infra.temporal.client import connect
from workers.cli.runs import find_run
from workflows.messages.errors import Transient
from workflows.messages.ids import cell_workflow_id, scheduler_id

_ANSWER_SECONDS = 5.0
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
    summary = {"run": manifest.run, "folder": manifest.run_dir, "records": from_records(engine)}
    engine.dispose()
    summary["workflows"] = asyncio.run(from_workflows(manifest))
    if json_:
        print(json.dumps(summary, indent=2))
    else:
        _show(summary, Console())


def from_records(engine: Engine) -> dict[str, Any]:
    """Counts and newest entries of the records; works also while the stack is down."""
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
            "published": bool(newest and newest["published_at"]),
            "role_changes": connection.execute(select(func.count()).select_from(transitions)).scalar_one(),
            "engines": [
                {"engine": row["engine"], "door": row["door"], "version": row["version"], "slots": row["slots"]}
                for row in connection.execute(select(engines).order_by(engines.c.engine)).mappings()
            ],
        }


async def from_workflows(manifest: RunManifest) -> dict[str, str]:
    """What the Scheduler and the Cells show in the web UI as their current details; why not, where they cannot."""
    names = [scheduler_id(manifest.run)] + [cell_workflow_id(manifest.run, c.index) for c in manifest.fleet.cells]
    try:
        client = await connect(manifest, timeout_seconds=_CONNECT_SECONDS)
    except Transient as error:
        return {"temporal": f"not reachable: {error}"}
    return dict(zip(names, await asyncio.gather(*(_details(client, name) for name in names)), strict=True))


async def _details(client: Client, workflow_id: str) -> str:
    handle = client.get_workflow_handle(workflow_id)
    try:
        answer = await asyncio.wait_for(
            handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata), _ANSWER_SECONDS
        )
    except TimeoutError:
        return "no worker answers"
    except (RPCError, WorkflowQueryFailedError) as error:
        return f"no answer: {error}"
    return answer.current_details or "no details"


def _show(summary: dict[str, Any], console: Console) -> None:
    table = Table(title=f"run {summary['run']} in {summary['folder']}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in summary["records"].items():
        table.add_row(name.replace("_", " "), escape(_text(value)))
    for name, value in summary["workflows"].items():
        table.add_row(name, escape(value))
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return "none" if value is None else str(value)
