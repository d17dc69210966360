"""The folder of a run: who supervises it, what it is told (`run.json`), starting over.

At most one supervisor lives per folder: it holds a lock that the kernel releases when it dies, whatever the cause.
"""

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from sqlalchemy.exc import SQLAlchemyError

from infra.ports import free_ports, keep_or_replace
from infra.processes.identity import ProcessIdentity
from infra.records.database import has_dispatched, holds_a_run, open_database
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, Secrets, load_run
from infra.temporal.client import environment_target
from infra.weights.folder import require_model
from workflows.messages.errors import InvalidInput

CHECKOUT = Path(__file__).parents[2]

FIXED = ("run", "model", "context_tokens", "cells", "trainer", "database_url", "object_store_url", "temporal")
"""Fleet settings that a run keeps for life; others may change when it goes on."""

LOCK = "supervisor.lock"
_HOST = "127.0.0.1"
_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 3, 0.02


class FolderLock:
    """Held by the living supervisor of a run folder; raises InvalidInput when another one holds it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOCK
        self._file: IO[str] | None = None

    def __enter__(self) -> "FolderLock":
        file = self._path.open("a+")
        try:
            _lock(file)
        except BlockingIOError:
            file.seek(0)
            owner = _owner(file.read())
            file.close()
            raise InvalidInput(
                f"the run in {self._path.parent} is running already, started by {owner}; "
                "stop it there with Ctrl-C, or choose another folder with --run-dir"
            ) from None
        identity = ProcessIdentity.of(os.getpid())
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "start_ticks": identity and identity.start_ticks}))
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def is_supervised(run_dir: Path) -> bool:
    """Whether a living supervisor holds the folder; a moved or copied one is held by nobody."""
    try:
        with (run_dir / LOCK).open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _lock(file: IO[str]) -> None:
    """Lock `file`; a moment's patience, for whoever asks `is_supervised` holds it for an instant."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _owner(text: str) -> str:
    try:
        return f"process {json.loads(text)['pid']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def set_aside(run_dir: Path) -> Path | None:
    """Move an earlier run out of the way, to ``<folder>.<time>``; None when there is none.

    Raises InvalidInput while a supervisor lives there.
    """
    if not run_dir.exists():
        return None
    with FolderLock(run_dir):
        if (run_dir / "run.json").exists():
            remove_published_weights(load_run(run_dir))
        aside = run_dir.with_name(f"{run_dir.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        number = 1
        while aside.exists():
            number += 1
            aside = run_dir.with_name(f"{run_dir.name}.{time.strftime('%Y%m%d-%H%M%S')}-{number}")
        run_dir.rename(aside)
    return aside


def open_manifest(fleet: Fleet | None, run_dir: Path, *, root: Path = CHECKOUT) -> RunManifest:
    """`run.json` of a new run, or of the one that goes on in `run_dir` (its own fleet unless one is given).

    Ports stay where they are free. Raises InvalidInput when `fleet` changes what a run keeps for life; a run in which
    nothing ever ran is replaced instead.
    """
    if fleet is not None:
        require_model(root / fleet.model)
    if fleet is not None and _may_be_replaced(run_dir, fleet):
        remove_published_weights(load_run(run_dir))
        for left in run_dir.iterdir():
            if left.name != LOCK:  # the supervisor that asks holds it
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    run_dir.mkdir(parents=True, exist_ok=True)
    for name in ("logs", "workspaces", "checkpoints"):
        (run_dir / name).mkdir(exist_ok=True)
    Secrets.of(run_dir, create=True)
    if (run_dir / "run.json").exists():
        manifest = _go_on(load_run(run_dir), fleet, root)
    else:
        manifest = _begin(fleet or Fleet(), run_dir.resolve(), root)
    manifest.save()
    return manifest


def remove_published_weights(manifest: RunManifest) -> None:
    """Free the memory-backed copies of published weights; cells write them anew from the checkpoint."""
    shutil.rmtree(manifest.published_weights(0).parent, ignore_errors=True)


def _may_be_replaced(run_dir: Path, fleet: Fleet) -> bool:
    """A run that never dispatched an execution, kept wholly in its folder, is worth nothing to another fleet."""
    if not (run_dir / "run.json").exists():
        return False
    before = load_run(run_dir)
    if before.fleet.database_url or before.fleet.temporal != "dev":
        return False
    if _changed(before.fleet, _as_grown(before.fleet, fleet)) is None:
        return False
    engine = open_database(before.database_url, create=True)
    try:
        return not has_dispatched(engine)
    except SQLAlchemyError:
        return False  # recorded by another version: whether it is worth nothing cannot be told
    finally:
        engine.dispose()


def _begin(fleet: Fleet, run_dir: Path, root: Path) -> RunManifest:
    require_model(root / fleet.model)
    if fleet.database_url:
        _require_empty(fleet.database_url)
    return _place(fleet, run_dir, root, free_ports(5 + 3 * len(fleet.cells), host=_HOST))


def _require_empty(url: str) -> None:
    """A new run begins in a database of its own: in that of another one it would go on with the other's weights."""
    try:
        engine = open_database(url, create=True)
        taken = holds_a_run(engine)
        engine.dispose()
    except SQLAlchemyError as error:
        raise InvalidInput(f"the database cannot be used: {error}", field="database_url") from error
    if taken:
        raise InvalidInput("holds the records of another run; every run needs an empty one", field="database_url")


def _as_grown(before: Fleet, fleet: Fleet) -> Fleet:
    """`fleet` with the cells that were offered to the run while it ran."""
    is_beginning = fleet.cells == before.cells[: len(fleet.cells)]
    return fleet.model_copy(update={"cells": before.cells}) if is_beginning else fleet


def _changed(before: Fleet, fleet: Fleet) -> str | None:
    """The first setting that a run keeps for life and that is another one now."""
    return next((name for name in FIXED if getattr(fleet, name) != getattr(before, name)), None)


def _go_on(before: RunManifest, fleet: Fleet | None, root: Path) -> RunManifest:
    fleet = _as_grown(before.fleet, fleet or before.fleet)
    if (name := _changed(before.fleet, fleet)) is not None:
        raise InvalidInput(f"differs from that of the run in {before.run_dir}; --fresh starts a new run", field=name)
    dev = fleet.temporal == "dev"
    ports = [
        int(before.temporal_address.rsplit(":", 1)[1]) if dev else 0,
        int(before.temporal_ui.rsplit(":", 1)[1]) if dev else 0,
        before.proxy_port,
        before.proxy_admin_port,
        before.metrics_port,
        *before.engine_ports,
        *before.actor_ports,
        *before.linker_ports,
    ]
    placed = _place(fleet, before.folder, root, keep_or_replace(ports, host=before.host))
    return placed.model_copy(update={"gone": before.gone, "code": before.code})


def _place(fleet: Fleet, run_dir: Path, root: Path, ports: list[int]) -> RunManifest:
    frontend, ui, proxy, admin, metrics, *cells = ports
    count = len(fleet.cells)
    if fleet.temporal == "dev":
        address, page, namespace = f"{_HOST}:{frontend}", f"http://{_HOST}:{ui}", "default"
    else:
        target = environment_target()
        address, page, namespace = target["target_host"], "", target["namespace"]
    return RunManifest(
        fleet=fleet,
        root=str(root),
        run_dir=str(run_dir),
        host=_HOST,
        temporal_address=address,
        temporal_ui=page,
        temporal_namespace=namespace,
        proxy_port=proxy,
        proxy_admin_port=admin,
        metrics_port=metrics,
        engine_ports=tuple(cells[:count]),
        actor_ports=tuple(cells[count : 2 * count]),
        linker_ports=tuple(cells[2 * count :]),
    )
