"""Groups, batches, micro-steps and updates of the synthetic run."""

import json
from statistics import fmean, stdev

import numpy as np
from safetensors.numpy import save

from infra.records import schema
from tests.infra.audit.recording import (
    DISPATCHED_AT,
    GROUPS,
    MEMBERS,
    REWARDS,
    RUN,
    SyntheticRun,
    batch_id,
    execution_id,
)
from tests.infra.audit.synthetic_calls import SyntheticCall


def _advantages(rewards: list[float | None]) -> list[float | None]:
    valid = [reward for reward in rewards if reward is not None]
    if len(set(valid)) < 2:
        return [None if reward is None else 0.0 for reward in rewards]
    mean, spread = fmean(valid), stdev(valid) + 1e-6
    return [None if reward is None else (reward - mean) / spread for reward in rewards]


def add_group(
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


def add_batch(
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
                        "checksum": f"{version:064x}",
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
            "checksum_before": f"{version:064x}",
            "checksum_after": f"{version + (1 if accepted else 0):064x}",
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
        path = {"execution": execution, "leaf": calls[leaf].call, "segment": len(paths), "spans": spans}
        paths.append(path | {"advantage": advantage, "target_total": total})
    header = {"batch": batch, "index": index, "group": group, "temperature": 1.0, "paths": paths}
    dtypes = {"targets": "bool", "weights": "float32", "behaviour_logprobs": "float32", "versions": "int64"}
    tensors = {name: np.array(values, dtype=dtypes.get(name, "int32")) for name, values in arrays.items()}
    tensors["segment_offsets"] = np.array(offsets, dtype="int32")
    tensors["segment_parents"] = np.full(len(paths), -1, dtype="int32")
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


def add_update(run: SyntheticRun, version: int, batch: str, committed: float, published: float | None) -> None:
    row = {"version": version, "batch": batch, "checksum": f"{version:064x}", "checkpoint": f"v{version}"}
    run.add(schema.updates, row | {"committed_at": committed, "published_at": published})
