"""`gyre checkpoints`: which checkpoints a run keeps, whether they are whole, and one of them as a model folder."""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine

from infra.checkpoints import Checkpoint, CheckpointStore, Damage
from infra.checkpoints.agreement import record_damage
from infra.checkpoints.export import ExportType, export_model
from infra.checkpoints.manifest import SEAL
from infra.checkpoints.store import COMMITTED
from infra.records.database import open_database
from infra.settings.run import RunManifest
from workers.cli.runs import find_run
from workflows.messages.errors import CheckpointUnusable, InvalidInput


def checkpoints_list(run: str | None = None, /, *, json_: bool = False) -> None:
    """Show the checkpoints of a run, oldest first, and what is left of others.

    Parameters
    ----------
    run
        Folder or name of the run; without it the one last started.
    json_
        Print everything they bind as JSON.
    """
    manifest, store = _store(run)
    committed, fault = _committed(store)
    found = [_facts(checkpoint, committed) for checkpoint in store.list()]
    broken = store.broken()
    if json_:
        listed = {"run": manifest.run, "folder": str(store.root), "committed": committed, "committed_fault": fault}
        print(json.dumps({**listed, "checkpoints": found, "broken": broken}, indent=2))
        return
    console = Console()
    if not found and not broken:
        console.print(f"run {manifest.run} has no checkpoint yet; it serves its base model {manifest.model_folder}")
        return
    table = Table(title=f"checkpoints of run {manifest.run} in {store.root}", title_justify="left")
    for column in ("version", "checkpoint", "state", "batch", "made of", "steps", "sample positions", "size", "code"):
        table.add_column(column, overflow="fold", justify="right" if column in ("version", "steps", "size") else "left")
    for row in found:
        table.add_row(*map(escape, _cells(row)))
    console.print(table)
    for reason in broken.values():
        console.print(f"[red]not usable[/]: {escape(reason)}", soft_wrap=True, highlight=False)
    if fault:
        console.print(f"[red]damaged[/]: {escape(fault)}", soft_wrap=True, highlight=False)


def checkpoints_verify(run: str | None = None, version: int | None = None, /, *, json_: bool = False) -> None:
    """Hash every file, recompute the weights checksum, compare with the records; exits with 1 if anything is wrong.

    Parameters
    ----------
    run
        Folder or name of the run; without it the one last started.
    version
        Only the checkpoints of this version; all of them without it.
    json_
        Print the findings as JSON.
    """
    manifest, store = _store(run)
    broken = {name: reason for name, reason in store.broken().items() if _is_of(name, version)}
    chosen = [checkpoint for checkpoint in store.list() if _is_of(checkpoint.folder.name, version)]
    if version is not None and not chosen and not broken:
        raise _unknown(store, version)
    records = open_database(manifest.database_url, create=True)
    found = {
        checkpoint.folder.name: [damage.model_dump() for damage in _damage(checkpoint, records)]
        for checkpoint in chosen
    }
    records.dispose()
    _, fault = _committed(store)
    is_whole = not (any(found.values()) or broken or fault)
    if json_:
        report = {"run": manifest.run, "ok": is_whole, "checkpoints": found, "broken": broken, "committed_fault": fault}
        print(json.dumps(report, indent=2))
        sys.exit(0 if is_whole else 1)
    console = Console()
    table = Table(title=f"checkpoints of run {manifest.run}", title_justify="left")
    for column in ("checkpoint", "file", "fault"):
        table.add_column(column, overflow="fold")
    for name, damages in found.items():
        for damage in damages or [{"file": "all", "fault": "[green]whole[/]"}]:
            table.add_row(name, escape(damage["file"]), damage["fault"] if not damages else escape(damage["fault"]))
    for name, reason in broken.items():
        table.add_row(name, "", escape(reason.removeprefix(f"{name}: ")))
    if fault:
        table.add_row("", COMMITTED, escape(fault))
    console.print(table if table.row_count else f"run {manifest.run} has no checkpoint yet")
    sys.exit(0 if is_whole else 1)


def checkpoints_export(
    run: str, version: int, folder: Path, /, *, dtype: ExportType = "float32", json_: bool = False
) -> None:
    """Write one version's policy as a Hugging Face folder that SGLang and transformers load.

    Parameters
    ----------
    run
        Folder or name of the run.
    version
        Which version; `gyre checkpoints list` shows them.
    folder
        Where to; it must not exist.
    dtype
        Type of the weights in it; what was trained is float32.
    json_
        Print what was written as JSON.
    """
    manifest, store = _store(run)
    if folder.exists():
        raise InvalidInput(f"{folder} exists already", field="FOLDER")
    committed = _committed(store)[0]
    chosen = [checkpoint for checkpoint in store.list() if checkpoint.meta.version == version]
    if not chosen:
        raise _unknown(store, version)
    checkpoint = next((one for one in chosen if one.folder.name == committed), chosen[-1])
    origin = export_model(checkpoint, manifest.run, folder, dtype)
    if json_:
        print(origin.model_dump_json(indent=2))
        return
    mark = "" if checkpoint.folder.name == committed or version < _newest(committed) else " (not committed)"
    Console(highlight=False).print(
        f"version {version}{mark} of run {manifest.run} as {dtype} in {folder}\n"
        f"weights checksum {origin.checksum}, made by {origin.batch}",
        soft_wrap=True,
    )


def _store(run: str | None) -> tuple[RunManifest, CheckpointStore]:
    manifest = find_run(run, field="RUN")
    return manifest, CheckpointStore(manifest.checkpoints)


def _damage(checkpoint: Checkpoint, records: Engine) -> tuple[Damage, ...]:
    from infra.checkpoints.contents import contents_damage

    return checkpoint.damage() or (*contents_damage(checkpoint), *record_damage(records, checkpoint))


def _is_of(name: str, version: int | None) -> bool:
    return version is None or name.startswith(f"v{version:08d}-")


def _unknown(store: CheckpointStore, version: int) -> InvalidInput:
    if version == 0:
        return InvalidInput("version 0 is the run's base model, which has no checkpoint", field="VERSION")
    kept = sorted({checkpoint.meta.version for checkpoint in store.list()})
    known = f"there are {', '.join(map(str, kept))}" if kept else "there are none"
    broken = [reason for name, reason in store.broken().items() if _is_of(name, version)]
    why = f" ({'; '.join(broken)})" if broken else ""
    return InvalidInput(f"no usable checkpoint of version {version}; {known}{why}", field="VERSION")


def _committed(store: CheckpointStore) -> tuple[str | None, str | None]:
    """Name of the committed checkpoint, and what is wrong with the mark."""
    try:
        committed = store.committed()
    except CheckpointUnusable as damage:
        return None, str(damage)
    return (committed.folder.name if committed else None), None


def _newest(committed: str | None) -> int:
    return int(committed[1:9]) if committed else 0


def _facts(checkpoint: Checkpoint, committed: str | None) -> dict[str, Any]:
    name, written = checkpoint.folder.name, (checkpoint.folder / SEAL).stat().st_mtime
    is_committed = name == committed or checkpoint.meta.version < _newest(committed)
    is_paced = checkpoint.meta.trainer == "paced"
    return {
        "name": name,
        "attempt": checkpoint.attempt,
        "state": ("committed" if is_committed else "not committed") + (", paced" if is_paced else ""),
        "written_at": datetime.datetime.fromtimestamp(written, datetime.UTC).isoformat(timespec="seconds"),
        "bytes": checkpoint.bytes,
        "files": sorted(checkpoint.files),
        **checkpoint.meta.model_dump(mode="json"),
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ledger = row["ledger"]
    cells = sorted({entry["cell"] for entry in ledger["micro_steps"]})
    made = f"{len(ledger['micro_steps'])} micro-steps (cells {', '.join(map(str, cells))}), V "
    positions = [f"{name.removeprefix('position/')}: {at}" for name, at in row["counters"].items() if "/" in name]
    return (
        str(row["version"]),
        row["name"],
        row["state"],
        ledger["batch"],
        f"{made}{ledger['valid_executions']}",
        str(row["optimizer_steps"]),
        ", ".join(positions) or "-",
        f"{row['bytes'] / 1e6:,.1f} MB",
        row["code_version"][:12] + ("+changes" if row["code_version"].endswith("+changes") else ""),
    )
