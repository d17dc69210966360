"""A synthetic recorded run: made up, small, complete and consistent, for planting faults in.

Two bursts of B = 2, N = 3, mu = 2 on three cells of four slots. In each burst an evaluator fails once, a group has
equal rewards, an execution has a fork, a request moves while the core leaves, a satellite joins, and a micro-step is
claimed twice. The last batch has no targets at all. No engine, trainer or Temporal was involved.
"""

from pathlib import Path

from infra.records import schema
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest
from tests.infra.audit.recording import (
    BURST_SECONDS,
    DISPATCHED_AT,
    GROUPS,
    MEMBERS,
    RUN,
    SLOTS,
    T0,
    SyntheticRun,
    batch_id,
)
from tests.infra.audit.synthetic_calls import add_execution
from tests.infra.audit.synthetic_training import add_batch, add_group, add_update


def build(folder: Path, database_url: str = "") -> SyntheticRun:
    """Write the whole run below `folder`, its records to another database where one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(run=RUN, database_url=database_url)
    ports = (1, 2, 3)
    RunManifest(
        fleet=fleet,
        root=".",
        run_dir=str(folder),
        temporal_address="none",
        proxy_port=1,
        proxy_admin_port=2,
        engine_ports=ports,
        actor_ports=ports,
        linker_ports=ports,
    ).save()
    run = SyntheticRun.open(folder, database_url)
    for cell in range(3):
        run.add(schema.boots, {"component": f"cell-{cell}", "boot_epoch": 1, "booted_at": T0, "pid": 100 + cell})
        _transition(run, "boot", cell, T0, T0 + 1)
    for number, burst in enumerate(DISPATCHED_AT):
        _burst(run, burst, T0 + number * BURST_SECONDS, finished_before=number * GROUPS * MEMBERS)
    return run


def _burst(run: SyntheticRun, burst: str, start: float, finished_before: int) -> None:
    calls = {}
    for group in range(GROUPS):
        for member in range(MEMBERS):
            calls[group, member] = add_execution(run, burst, group, member, start)
    _ledger(run, "dispatch", 0, start + 5, finished_before, finished_before, roles=("rollout",) * 3)
    everything = finished_before + GROUPS * MEMBERS
    _ledger(run, "refuse", 0, start + 25, everything, finished_before + 6, roles=("rollout",) * 3)
    _ledger(run, "move", 0, start + 30.05, everything, everything - 2, roles=("rollout",) * 3)
    _transition(run, "to_training", 0, start + 30.1, start + 31, requests_moved=1, kv_tokens_reused=6)
    _ledger(run, "move", 1, start + 33, everything, everything, roles=("training", "rollout", "rollout"))
    _transition(run, "to_training", 1, start + 33.1, start + 34)
    version = DISPATCHED_AT[burst]
    for group in range(GROUPS):
        add_group(run, burst, group, start, calls, consumed=_versions(burst)[group // 2])
    for step in range(2):
        after = add_batch(run, burst, step, version, start, calls)
        if after > version:
            published = start + 47 if step == 1 or burst == "second" else None
            add_update(run, after, batch_id(burst, step), start + 40 + 5 * step, published)
        version = after
    _ledger(run, "publish", None, start + 45.2, everything, everything, ("training", "training", "rollout"), version)
    _transition(run, "to_rollout", 1, start + 45.5, start + 46.5)
    _transition(run, "to_rollout", 0, start + 45.6, start + 46.8)
    _transition(run, "publish", 2, start + 45.4, start + 46)


def _versions(burst: str) -> tuple[int, int]:
    """Version before each of the burst's two updates."""
    first = DISPATCHED_AT[burst]
    return first, first + 1


def _transition(run: SyntheticRun, direction: str, cell: int, started: float, ended: float, **figures: int) -> None:
    row = {"transition": f"{RUN}/{direction}/{cell}/{started:.1f}", "run": RUN, "cell": cell, "direction": direction}
    row |= {"started_at": started, "ended_at": ended, "result": "done", "steps": [], "figures": figures}
    run.add(schema.transitions, row)


def _ledger(
    run: SyntheticRun,
    kind: str,
    cell: int | None,
    at: float,
    dispatched: int,
    finished: int,
    roles: tuple[str, ...],
    version: int | None = None,
) -> None:
    cells = [
        {"index": index, "role": role, "slots": SLOTS, "trains": True, "serving": role == "rollout"}
        for index, role in enumerate(roles)
    ]
    state = {
        "now": at,
        "dispatched": dispatched,
        "launched": dispatched,
        "finished": finished,
        "cells": cells,
        "standalone_slots": 0,
        "bounds": {"min_rollout_cells": 0, "min_training_cells": 0, "max_training_cells": None},
        "ready_unassigned": 2,
        "batch": {"batch": "next", "needed": 2},
        "groups_per_step": 2,
        "supply_fraction": 0.5,
        "hold_seconds": 2.0,
        "move_under_way": False,
    }
    row = {"run": RUN, "at": at, "kind": kind, "cell": cell, "reasons": ["made_up"], "state": state}
    if version is not None:
        row["reasons"] = [f"version {version}", "changed"]
    run.add(schema.ledger, row | {"token": f"{kind}-{at}"})
