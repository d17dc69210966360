"""The demo's summary: every figure measured or audited, from the records."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, func, select

from infra.audit import AuditReport
from infra.records.schema import batches, calls, executions, groups, segments, transitions
from infra.statistics import paired_interval, wilson_interval

TROUBLE = ("crashed", "never_ran")
"""How an execution ends when the harness itself, or the way to its model, failed."""


@dataclass(frozen=True)
class PassRate:
    """Rewards of one evaluation by task; a member that was not scored counts as not passed."""

    rewards: dict[int, float]

    @property
    def rate(self) -> float:
        return sum(self.rewards.values()) / len(self.rewards) if self.rewards else 0.0

    def as_json(self) -> dict[str, Any]:
        low, high = wilson_interval(sum(self.rewards.values()), len(self.rewards))
        return {"rate": round(self.rate, 4), "interval95": [round(low, 4), round(high, 4)], "tasks": len(self.rewards)}


def pass_rate(records: Engine, burst: str) -> PassRate:
    """The pass rate of an evaluation burst."""
    query = select(executions.c.group_index, executions.c.reward).where(executions.c.burst == burst)
    with records.connect() as connection:
        return PassRate({row.group_index: row.reward or 0.0 for row in connection.execute(query)})


def gain(before: PassRate, after: PassRate) -> dict[str, Any]:
    """Paired gain over the tasks of two evaluations."""
    found = differences(before, after)
    mean, low, high = paired_interval(found)
    return {"gain": round(mean, 4), "interval95": [round(low, 4), round(high, 4)], "tasks": len(found)}


def differences(before: PassRate, after: PassRate) -> list[float]:
    """Reward after minus before, of every task that is in both."""
    return [after.rewards[task] - before.rewards[task] for task in sorted(before.rewards.keys() & after.rewards.keys())]


def logprob_gap(records: Engine) -> dict[str, Any]:
    """|behaviour - trainer| log-prob over batches trained at the very version that was sampled.

    A later step of a burst trains what an older version sampled; there the difference is the policy's change, so it
    is left out. The mean is weighted by target tokens; the percentile is the largest of the batches' own.
    """
    tokens, total, worst, highest = 0.0, 0.0, 0.0, 0.0
    with records.connect() as connection:
        for batch in connection.execute(select(batches).where(batches.c.committed_at.is_not(None))):
            metrics = batch.metrics or {}
            if not metrics.get("target_tokens") or not _fresh(connection, batch):
                continue
            tokens += metrics["target_tokens"]
            total += metrics["target_tokens"] * metrics["logprob_gap_mean"]
            worst = max(worst, metrics["logprob_gap_p999"])
            highest = max(highest, metrics["logprob_gap_max"])
    return {"mean": total / tokens if tokens else None, "p999": worst, "max": highest, "target_tokens": int(tokens)}


def _fresh(connection, batch) -> bool:
    versions = (
        select(executions.c.dispatch_version)
        .join(
            groups,
            (groups.c.burst == executions.c.burst) & (groups.c.group_index == executions.c.group_index),
        )
        .where(groups.c.batch == batch.batch)
        .distinct()
    )
    return set(connection.scalars(versions)) == {batch.version_before}


def continued(records: Engine) -> list[dict[str, Any]]:
    """Every request that was cut and went on elsewhere: from which cell, when, and what the new engine had cached."""
    before, after = segments.alias("before"), segments.alias("after")
    query = select(
        before.c.cell, before.c.ended_at, after.c.prompt_tokens, func.coalesce(after.c.cached_tokens, 0)
    ).join(after, (after.c.call == before.c.call) & (after.c.segment == before.c.segment + 1))
    with records.connect() as connection:
        return [
            {"cell": cell, "at": at or 0.0, "reused": cached, "recomputed": prompt - cached}
            for cell, at, prompt, cached in connection.execute(query)
        ]


def moves(records: Engine) -> list[dict[str, Any]]:
    """Every role change: direction, cell, seconds a step, what moved, and the KV its cut requests found elsewhere."""
    query = select(transitions).order_by(transitions.c.started_at)
    cuts = continued(records)

    def kv(row: Any, name: str) -> int:
        return sum(cut[name] for cut in cuts if cut["cell"] == row.cell and row.started_at <= cut["at"] <= row.ended_at)

    with records.connect() as connection:
        return [
            {
                "transition": row.transition,
                "direction": row.direction,
                "cell": row.cell,
                "result": row.result,
                "seconds": round((row.ended_at or row.started_at) - row.started_at, 3),
                "steps": {step["name"]: round(step["seconds"], 3) for step in row.steps},
                "requests_moved": row.figures["requests_moved"],
                "executions_rerouted": row.figures["executions_rerouted"],
                "kv_tokens_handed_over": row.figures["kv_tokens_reused"],
                "kv_tokens_reused": kv(row, "reused"),
                "kv_tokens_recomputed": kv(row, "recomputed"),
            }
            for row in connection.execute(query)
        ]


def joins(records: Engine) -> dict[int, int]:
    """Micro-steps that counted, by satellite and batch: (batches a satellite contributed to) per cell."""
    found: Counter[int] = Counter()
    with records.connect() as connection:
        for accepted in connection.scalars(select(batches.c.accepted).where(batches.c.accepted.is_not(None))):
            found.update({entry["cell"] for entry in accepted if entry["cell"] > 0})
    return dict(sorted(found.items()))


def errors(records: Engine) -> dict[str, int]:
    """What a harness must never meet: crashes, starts that failed, calls that were answered with an error of ours."""
    with records.connect() as connection:
        ends = Counter(connection.scalars(select(executions.c.end_reason)))
        states = Counter(connection.scalars(select(calls.c.state)))
    return {**{name: ends[name] for name in TROUBLE}, "failed_calls": states["failed"]}


def rewards_by_step(records: Engine) -> list[dict[str, Any]]:
    """Mean reward of the valid executions of every committed batch, in order."""
    steps: list[dict[str, Any]] = []
    with records.connect() as connection:
        for batch in connection.execute(select(batches).order_by(batches.c.opened_at)):
            members = [
                member
                for found in connection.scalars(select(groups.c.members).where(groups.c.batch == batch.batch))
                for member in found
            ]
            valid = [member["reward"] for member in members if member["left_out"] is None]
            steps.append(
                {
                    "batch": batch.batch,
                    "at": batch.committed_at,
                    "seconds": round((batch.committed_at or batch.opened_at) - batch.opened_at, 2),
                    "version": batch.version_after,
                    "mean_reward": round(sum(valid) / len(valid), 4) if valid else None,
                    "cells": dict(sorted(Counter(str(done["cell"]) for done in batch.accepted or ()).items())),
                    "target_tokens": (batch.metrics or {}).get("target_tokens", 0),
                    "grad_norm": (batch.metrics or {}).get("grad_norm"),
                }
            )
    return steps


def summarise(records: Engine, audit: AuditReport, evaluations: dict[str, str]) -> dict[str, Any]:
    """Everything but wall time and memory. `evaluations` maps before, after, greedy_before, greedy_after to bursts."""
    rates = {name: pass_rate(records, burst) for name, burst in evaluations.items()}
    trouble, satellites = errors(records), joins(records)
    changes = moves(records)
    figures = audit.figures
    summary: dict[str, Any] = {
        "pass_rate_before": rates["before"].as_json(),
        "pass_rate_after": rates["after"].as_json(),
        "gain": gain(rates["before"], rates["after"]),
    }
    if "greedy_before" in rates:
        summary["greedy_before"] = rates["greedy_before"].as_json()
        summary["greedy_after"] = rates["greedy_after"].as_json()
    return summary | {
        "updates": figures["updates"],
        "executions": figures["counts"],
        "requests_moved": sum(change["requests_moved"] for change in changes),
        "satellite_joins": sum(satellites.values()),
        "satellite_joins_by_cell": {str(cell): count for cell, count in satellites.items()},
        "max_w_minus_capacity": figures["max_w_minus_capacity"],
        "harness_errors": sum(trouble.values()),
        "harness_errors_by_kind": trouble,
        "targets_trained_twice": figures["targets_trained_twice"],
        "version_mismatches": figures["version_mismatches"],
        "logprob_gap": logprob_gap(records),
        "audit_findings": [finding.model_dump(mode="json") for finding in audit.findings],
        "client": "thin: mini-swe-agent's own model_class setting, on our standard-library client",
        "steps": rewards_by_step(records),
        "transitions": changes,
    }
