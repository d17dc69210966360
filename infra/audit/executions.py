"""Executions one by one: closed once, scored or not scored, and the calls each of them made (invariants 3, 4, 7, 8)."""

from dataclasses import dataclass
from math import isfinite

from sqlalchemy import Engine, Row, select

from infra.audit.calls import check_call
from infra.audit.histories import load_history
from infra.audit.reader import stream
from infra.audit.report import Findings
from infra.audit.requests import check_segments
from infra.audit.timelines import Timelines
from infra.records import schema


@dataclass(frozen=True)
class ExecutionFact:
    """What later checks need of an execution, small enough to keep for every one of a run."""

    burst: str
    group_index: int
    purpose: str
    dispatch_version: int
    prepared_at: float | None
    closed_at: float | None
    end_reason: str | None
    outcome: str | None
    reward: float | None


def check_executions(
    engine: Engine, findings: Findings, timelines: Timelines, *, at_rest: bool
) -> dict[str, ExecutionFact]:
    """Check every execution with its calls; one execution's tokens are in memory at a time."""
    facts: dict[str, ExecutionFact] = {}
    calls = output_tokens = 0
    for row in stream(engine, select(schema.executions).order_by(schema.executions.c.execution)):
        facts[row.execution] = _fact(row)
        _check_score(findings, row)
        if at_rest:
            findings.expect(row.closed_at is not None, "execution-not-closed", row.execution, f"state {row.state}")
        history = load_history(engine, row.execution)
        budget = (row.sampling or {}).get("max_call_tokens")
        for call in history.calls.values():
            check_call(findings, history, call)
        check_segments(engine, findings, history, timelines, budget=budget, dispatch_version=row.dispatch_version)
        calls += len(history.calls)
        output_tokens += sum(len(call.output) for call in history.calls.values())
    findings.figures |= {"calls": calls, "output_tokens": output_tokens}
    return facts


def _fact(row: Row) -> ExecutionFact:
    return ExecutionFact(**{name: getattr(row, name) for name in ExecutionFact.__dataclass_fields__})


def _check_score(findings: Findings, row: Row) -> None:
    if row.outcome != "scored":
        detail = f"outcome {row.outcome}, reward {row.reward}"
        findings.expect(row.reward is None, "failure-rewarded", row.execution, detail)
        return
    right = row.reward is not None and isfinite(row.reward) and 0.0 <= row.reward <= 1.0
    findings.expect(right, "reward-invalid", row.execution, f"reward {row.reward}")
