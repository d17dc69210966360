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
from infra.records.database import holds_a_run, open_database
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest, Secrets, load_run
from infra.temporal.client import environment_target
from workflows.messages.errors import InvalidInput

CHECKOUT = Path(__file__).parents[2]

FIXED = ("run", "model", "context_tokens", "cells", "trainer", "database_url", "object_store_url", "temporal")
"""Fleet settings that a run keeps for life; others may change when it goes on."""

_HOST = "127.0.0.1"


class FolderLock:
    """Held by the living supervisor of a run folder; raises InvalidInput when another one holds it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "supervisor.lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> "FolderLock":
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise InvalidInput(f"{self._path.parent} is already supervised by {owner or 'another process'}") from None
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

    Ports stay where they are free. Raises InvalidInput when `fleet` changes what a run keeps for life.
    """
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


def _begin(fleet: Fleet, run_dir: Path, root: Path) -> RunManifest:
    if not (root / fleet.model / "config.json").is_file():
        raise InvalidInput(f"no model is at {root / fleet.model}: config.json is missing", field="model")
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


def _go_on(before: RunManifest, fleet: Fleet | None, root: Path) -> RunManifest:
    fleet = fleet or before.fleet
    if fleet.cells == before.fleet.cells[: len(fleet.cells)]:  # the others were offered while it ran
        fleet = fleet.model_copy(update={"cells": before.fleet.cells})
    for name in FIXED:
        if getattr(fleet, name) != getattr(before.fleet, name):
            raise InvalidInput(
                f"differs from that of the run in {before.run_dir}; --fresh starts a new run", field=name
            )
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
    return placed.model_copy(update={"gone": before.gone})


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
