"""A synthetic recorded run: made up, small, complete and consistent, for planting faults in.

Two bursts of B = 2, N = 3, mu = 2 on three cells of four slots. In each burst an evaluator fails once, a group has
equal rewards, an execution has a fork, a request moves while the core leaves, a satellite joins, and a micro-step is
claimed twice. The last batch has no targets at all. No engine, trainer or Temporal was involved.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from uuid import UUID

import numpy as np
from safetensors.numpy import load, save
from sqlalchemy import Engine, Table, delete, insert, select, update

from infra.objects import ObjectStore
from infra.records import schema
from infra.records.database import open_database
from infra.records.tokens import pack_ids, pack_logprobs
from infra.settings.fleet import Fleet
from infra.settings.run import RunManifest

RUN = "synthetic"
T0 = 1_700_000_000.0
BURST_SECONDS = 50.0
GROUPS, MEMBERS, SLOTS = 4, 3, 4
REWARDS = {
    "first": [[1.0, 0.0, 0.0], [1.0, None, 0.25], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]],
    "second": [[0.5, 0.0, 1.0], [1.0, None, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]],
}
DISPATCHED_AT = {"first": 0, "second": 2}


@dataclass
class SyntheticCall:
    """One call as the builder knows it: prompt and output ids, log-probs."""

    call: str
    prompt: list[int]
    output: list[int]
    logprobs: list[float]
    version: int


@dataclass
class SyntheticRun:
    """A recorded run on disk, with what a planted fault needs to change it."""

    folder: Path
    engine: Engine
    store: ObjectStore

    @classmethod
    def open(cls, folder: Path) -> "SyntheticRun":
        engine = open_database(f"sqlite:///{folder / 'records.db'}", create=True)
        return cls(folder, engine, ObjectStore(f"file://{folder / 'objects'}"))

    def add(self, table: Table, *rows: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            connection.execute(insert(table), list(rows))

    def change(self, table: Table, key: dict[str, Any], **values: Any) -> None:
        """Set columns of the rows that `key` names; at least one must be there."""
        with self.engine.begin() as connection:
            where = [table.c[name] == value for name, value in key.items()]
            if connection.execute(update(table).where(*where).values(**values)).rowcount < 1:
                raise LookupError(f"no {table.name} {key}")

    def remove(self, table: Table, **key: Any) -> None:
        with self.engine.begin() as connection:
            where = [table.c[name] == value for name, value in key.items()]
            if connection.execute(delete(table).where(*where)).rowcount < 1:
                raise LookupError(f"no {table.name} {key}")

    def row(self, table: Table, **key: Any) -> dict[str, Any]:
        """The first row that `key` names, in primary key order."""
        where = [table.c[name] == value for name, value in key.items()]
        with self.engine.connect() as connection:
            found = connection.execute(select(table).where(*where).order_by(*table.primary_key)).mappings().first()
        if found is None:
            raise LookupError(f"no {table.name} {key}")
        return dict(found)

    def repack(self, batch: str, micro_step: int, *, honest: bool = True, header=None, **arrays: np.ndarray) -> None:
        """Replace parts of a payload; `honest` records the new hash, so that only the content is wrong."""
        row = self.row(schema.micro_steps, batch=batch, micro_step=micro_step)
        blob = self.store.read(row["uri"])
        size = int.from_bytes(blob[:8], "little")
        old = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
        ref = self.store.put(row["uri"], save(load(blob) | arrays, metadata={"header": json.dumps(header or old)}))
        if honest:
            self.change(schema.micro_steps, {"batch": batch, "micro_step": micro_step}, sha256=ref.sha256)

    def payload(self, batch: str, micro_step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays (own copies) and header of a payload."""
        blob = self.store.read(self.row(schema.micro_steps, batch=batch, micro_step=micro_step)["uri"])
        size = int.from_bytes(blob[:8], "little")
        header = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["header"])
        return {name: array.copy() for name, array in load(blob).items()}, header


def execution_id(burst: str, group: int, member: int) -> str:
    return f"{RUN}/execution/{burst}/{group:04d}/{member:02d}"


def batch_id(burst: str, step: int) -> str:
    return f"{RUN}/batch/{burst}/{step}"


def build(folder: Path) -> SyntheticRun:
    """Write the whole run below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(run=RUN)
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
    run = SyntheticRun.open(folder)
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
            calls[group, member] = _execution(run, burst, group, member, start)
    _ledger(run, "dispatch", 0, start + 5, finished_before, finished_before, roles=("rollout",) * 3)
    everything = finished_before + GROUPS * MEMBERS
    _ledger(run, "refuse", 0, start + 25, everything, finished_before + 6, roles=("rollout",) * 3)
    _ledger(run, "move", 0, start + 30.05, everything, everything - 2, roles=("rollout",) * 3)
    _transition(run, "to_training", 0, start + 30.1, start + 31, requests_moved=1, kv_tokens_reused=6)
    _ledger(run, "move", 1, start + 33, everything, everything, roles=("training", "rollout", "rollout"))
    _transition(run, "to_training", 1, start + 33.1, start + 34)
    version = DISPATCHED_AT[burst]
    for group in range(GROUPS):
        _group(run, burst, group, start, calls, consumed=_versions(burst)[group // 2])
    for step in range(2):
        after = _batch(run, burst, step, version, start, calls)
        if after > version:
            published = start + 47 if step == 1 or burst == "second" else None
            _update(run, after, batch_id(burst, step), start + 40 + 5 * step, published)
        version = after
    _ledger(run, "publish", None, start + 45.2, everything, everything, ("training", "training", "rollout"), version)
    _transition(run, "to_rollout", 1, start + 45.5, start + 46.5)
    _transition(run, "to_rollout", 0, start + 45.6, start + 46.8)
    _transition(run, "publish", 2, start + 45.4, start + 46)


def _versions(burst: str) -> tuple[int, int]:
    """Version before each of the burst's two updates."""
    first = DISPATCHED_AT[burst]
    return first, first + 1


def _execution(run: SyntheticRun, burst: str, group: int, member: int, start: float) -> dict[str, SyntheticCall]:
    number = group * MEMBERS + member
    execution, reward = execution_id(burst, group, member), REWARDS[burst][group][member]
    prepared = start + 10 + number / 10
    run.add(
        schema.executions,
        {
            "execution": execution,
            "run": RUN,
            "burst": burst,
            "group_index": group,
            "member": member,
            "purpose": "train",
            "task": "made-up",
            "harness": "none",
            "client": "thin",
            "seed": number,
            "dispatch_version": DISPATCHED_AT[burst],
            "sampling": {"temperature": 1.0, "max_call_tokens": 8},
            "call_limit": 10,
            "token_sha256": "0" * 64,
            "attempt": 1,
            "state": "closed",
            "workspace": "none",
            "prepared_at": prepared,
            "first_call_at": prepared + 1,
            "ended_at": start + 19.9 + number,
            "closed_at": start + 20 + number,
            "end_reason": "submitted",
            "outcome": "evaluator_failed" if reward is None else "scored",
            "reward": reward,
            "model_calls": 3,
        },
    )
    draw, version = random.Random(execution), DISPATCHED_AT[burst]

    def ids(count: int) -> list[int]:
        return [draw.randrange(10, 4000) for _ in range(count)]

    first = _call(run, execution, 0, None, ids(6), ids(4), version, prepared + 1, number % 3)
    moved = number == GROUPS * MEMBERS - 1
    second = _call(
        run, execution, 1, first, ids(2), ids(3), version, start + 29 if moved else prepared + 2, number % 3, moved
    )
    fork = _call(run, execution, 2, first, ids(3), ids(2), version, prepared + 3, number % 3)
    return {"first": first, "second": second, "fork": fork}


def _call(
    run: SyntheticRun,
    execution: str,
    sequence: int,
    parent: SyntheticCall | None,
    tail: list[int],
    output: list[int],
    version: int,
    started: float,
    cell: int,
    moved: bool = False,
) -> SyntheticCall:
    draw = random.Random(f"{execution} {sequence}")
    shared = [] if parent is None else parent.prompt + parent.output
    call = UUID(int=draw.getrandbits(128)).hex
    logprobs = np.float32([-draw.random() * 3 for _ in output]).tolist()
    run.add(
        schema.calls,
        {
            "call": call,
            "execution": execution,
            "attempt": 1,
            "sequence": sequence,
            "dialect": "chat",
            "role": "main",
            "state": "finished",
            "started_at": started,
            "ended_at": started + 0.5,
            "parent_call": parent.call if parent else None,
            "shared_tokens": len(shared),
            "input_tail": pack_ids(tail),
            "prompt_tokens": len(shared) + len(tail),
            "output_ids": pack_ids(output),
            "output_logprobs": pack_logprobs(logprobs),
            "version_spans": [[version, len(output)]],
            "output_tokens": len(output),
            "finish": "stop",
            "imposed": {"temperature": 1.0, "max_call_tokens": 8, "budget": 8},
        },
    )
    parts = [(0, len(output) - 1, "abort"), (2, 1, "stop")] if moved else [(cell, len(output), "stop")]
    produced = 0
    for number, (home, tokens, ended) in enumerate(parts):
        run.add(
            schema.segments,
            {
                "call": call,
                "segment": number,
                "rid": UUID(int=draw.getrandbits(128)).hex,
                "engine": f"cell-{home}",
                "cell": home,
                "boot_epoch": 1,
                "version": version,
                "started_at": started + 1.4 * number,
                "ended_at": started + 1.4 * number + 0.3,
                "prompt_tokens": len(shared) + len(tail) + produced,
                "kv_waited": False,
                "output_tokens": tokens,
                "ended": ended,
            },
        )
        produced += tokens
    return SyntheticCall(call, shared + tail, output, logprobs, version)


def _advantages(rewards: list[float | None]) -> list[float | None]:
    valid = [reward for reward in rewards if reward is not None]
    if len(set(valid)) < 2:
        return [None if reward is None else 0.0 for reward in rewards]
    mean, spread = fmean(valid), stdev(valid) + 1e-6
    return [None if reward is None else (reward - mean) / spread for reward in rewards]


def _group(
    run: SyntheticRun,
    burst: str,
    group: int,
    start: float,
    calls: dict[tuple[int, int], dict[str, SyntheticCall]],
    consumed: int,
) -> None:
    rewards = REWARDS[burst][group]
    advantages = _advantages(rewards)
    members = [
        {
            "execution": execution_id(burst, group, member),
            "outcome": "evaluator_failed" if reward is None else "scored",
            "reward": reward,
            "advantage": advantages[member],
            "target_tokens": sum(len(call.output) for call in calls[group, member].values()),
            "left_out": "evaluator_failed" if reward is None else None,
            "staleness": 0,
        }
        for member, reward in enumerate(rewards)
    ]
    run.add(
        schema.groups,
        {
            "group_id": f"{burst}/{group:04d}",
            "run": RUN,
            "burst": burst,
            "group_index": group,
            "sequence": list(DISPATCHED_AT).index(burst) * GROUPS + group,
            "admitted_at": start + 20 + group * MEMBERS + 2.5,
            "admitted_version": DISPATCHED_AT[burst],
            "valid": sum(reward is not None for reward in rewards),
            "no_signal": None if any(advantages[member] for member in range(MEMBERS)) else "equal_rewards",
            "members": members,
            "batch": batch_id(burst, group // 2),
            "consumed_version": consumed,
        },
    )


def _batch(
    run: SyntheticRun,
    burst: str,
    step: int,
    version: int,
    start: float,
    calls: dict[tuple[int, int], dict[str, SyntheticCall]],
) -> int:
    batch, opened = batch_id(burst, step), start + (33 if step == 0 else 40.5)
    accepted, normalizer, index = [], 0, 0
    for group in (2 * step, 2 * step + 1):
        rewards = REWARDS[burst][group]
        advantages = _advantages(rewards)
        if not any(advantages):
            continue
        normalizer += sum(reward is not None for reward in rewards)
        for member, advantage in enumerate(advantages):
            if advantage is None:
                continue
            _micro_step(run, batch, index, f"{burst}/{group:04d}", member, advantage, calls[group, member], opened)
            cell, attempt = index % 2, 2 if index == 1 else 1
            accepted.append({"index": index, "attempt": attempt, "cell": cell, "boot_epoch": 1})
            for number in range(1, attempt + 1):
                run.add(
                    schema.claims,
                    {
                        "batch": batch,
                        "micro_step": index,
                        "attempt": number,
                        "cell": cell,
                        "boot_epoch": 1,
                        "version": version,
                        "claimed_at": opened + 1 + number / 10,
                        "done_at": opened + 2 if number == attempt else None,
                    },
                )
            index += 1
    run.add(
        schema.batches,
        {
            "batch": batch,
            "run": RUN,
            "burst": burst,
            "step": step,
            "opened_at": opened,
            "window_closed_at": start + 39 + 5 * step,
            "committed_at": start + 40 + 5 * step,
            "version_before": version,
            "version_after": version + (1 if accepted else 0),
            "groups": [f"{burst}/{2 * step:04d}", f"{burst}/{2 * step + 1:04d}"],
            "accepted": accepted,
            "normalizer": normalizer,
        },
    )
    return version + (1 if accepted else 0)


def _micro_step(
    run: SyntheticRun,
    batch: str,
    index: int,
    group: str,
    member: int,
    advantage: float,
    calls: dict[str, SyntheticCall],
    opened: float,
) -> None:
    """Two paths: the second call with both calls' targets, and the fork with its own alone."""
    total = sum(len(call.output) for call in calls.values())
    arrays: dict[str, list[float]] = {name: [] for name in ("ids", "positions", "targets", "weights")}
    arrays |= {"behaviour_logprobs": [], "versions": []}
    offsets, paths = [0], []
    for leaf, trained in (("second", ("first", "second")), ("fork", ("fork",))):
        ids = calls[leaf].prompt + calls[leaf].output
        base, spans = offsets[-1], []
        rows = {"targets": [False] * len(ids), "weights": [0.0] * len(ids), "versions": [-1] * len(ids)}
        rows["behaviour_logprobs"] = [0.0] * len(ids)
        for name in trained:
            call, place = calls[name], len(calls[name].prompt)
            for offset, logprob in enumerate(call.logprobs):
                rows["targets"][place + offset] = True
                rows["weights"][place + offset] = advantage / total
                rows["versions"][place + offset] = call.version
                rows["behaviour_logprobs"][place + offset] = logprob
            start = base + place
            spans.append({"call": call.call, "offset": 0, "start": start, "end": start + len(call.output)})
        for name, values in (rows | {"ids": ids, "positions": list(range(len(ids)))}).items():
            arrays[name].extend(values)
        offsets.append(base + len(ids))
        execution = f"{RUN}/execution/{group}/{member:02d}"
        path = {"execution": execution, "leaf": calls[leaf].call, "advantage": advantage, "target_total": total}
        paths.append(path | {"spans": spans})
    header = {"batch": batch, "index": index, "group": group, "temperature": 1.0, "paths": paths}
    dtypes = {"targets": "bool", "weights": "float32", "behaviour_logprobs": "float32", "versions": "int64"}
    tensors = {name: np.array(values, dtype=dtypes.get(name, "int32")) for name, values in arrays.items()}
    tensors["path_offsets"] = np.array(offsets, dtype="int32")
    ref = run.store.put(
        f"micro-steps/{batch}/{index}.safetensors", save(tensors, metadata={"header": json.dumps(header)})
    )
    run.add(
        schema.micro_steps,
        {
            "batch": batch,
            "micro_step": index,
            "group_id": group,
            "uri": ref.uri,
            "sha256": ref.sha256,
            "tokens": offsets[-1],
            "target_tokens": total,
        },
    )


def _update(run: SyntheticRun, version: int, batch: str, committed: float, published: float | None) -> None:
    row = {"version": version, "batch": batch, "checksum": f"{version:064x}", "checkpoint": f"v{version}"}
    run.add(schema.updates, row | {"committed_at": committed, "published_at": published})


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
