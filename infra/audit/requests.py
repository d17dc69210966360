"""The segments of a call: one request to the harness, however many engines served it (invariants 3 and 7)."""

from collections.abc import Iterator
from itertools import groupby, pairwise

import numpy as np
from sqlalchemy import Engine, Row, func, select

from infra.audit.histories import CallHistory, RecordedCall
from infra.audit.reader import stream
from infra.audit.report import Findings
from infra.audit.timelines import Timelines
from infra.records import schema

_BUDGET_KEYS = ("budget", "max_call_tokens")
_FINAL = ("stop", "length")
_DELIVERED = ("finished", "undelivered")


def check_request_ids(engine: Engine, findings: Findings) -> None:
    """Request ids of the whole run: unique, and of one length so that none is a prefix of another."""
    rid = schema.segments.c.rid
    for row in stream(engine, select(rid, func.count().label("uses")).group_by(rid).having(func.count() > 1)):
        findings.add("rid-repeated", row.rid, f"used {row.uses} times")
    lengths = sorted(row[0] for row in stream(engine, select(func.length(rid)).distinct()))
    findings.expect(len(lengths) <= 1, "rid-length", "segments", f"lengths {lengths}")


def check_segments(
    engine: Engine,
    findings: Findings,
    history: CallHistory,
    timelines: Timelines,
    *,
    budget: int | None,
    dispatch_version: int,
) -> None:
    """Check the segments of every call of one execution; `budget` is what its burst imposes, in tokens."""
    for call, segments in _segments_of(engine, history):
        subject = f"{history.execution} call {call.sequence}"
        _check_budget(findings, call, budget, subject)
        _check_lengths(findings, call, segments, subject)
        _check_versions(findings, call, segments, timelines, subject)
        for segment in segments:
            detail = f"segment {segment.segment} at version {segment.version}, dispatched at {dispatch_version}"
            findings.expect(segment.version >= dispatch_version, "staleness-negative", subject, detail)


def _segments_of(engine: Engine, history: CallHistory) -> Iterator[tuple[RecordedCall, list[Row]]]:
    calls, segments = schema.calls, schema.segments
    query = (
        select(segments)
        .join(calls, calls.c.call == segments.c.call)
        .where(calls.c.execution == history.execution)
        .order_by(calls.c.sequence, segments.c.call, segments.c.segment)
    )
    seen = set()
    for call, rows in groupby(stream(engine, query), key=lambda row: row.call):
        seen.add(call)
        yield history.calls[call], list(rows)
    for call in history.calls.keys() - seen:
        yield history.calls[call], []


def _check_budget(findings: Findings, call: RecordedCall, budget: int | None, subject: str) -> None:
    budgets = [call.imposed[key] for key in _BUDGET_KEYS if isinstance(call.imposed.get(key), int)]
    if budget is not None:
        budgets.append(budget)
    if budgets:
        detail = f"{call.output_tokens} output tokens, budget {min(budgets)}"
        findings.expect(call.output_tokens <= min(budgets), "budget-exceeded", subject, detail)


def _check_lengths(findings: Findings, call: RecordedCall, segments: list[Row], subject: str) -> None:
    total = sum(segment.output_tokens for segment in segments)
    if call.state in _DELIVERED:
        detail = f"segments {total}, call {call.output_tokens}"
        findings.expect(total == call.output_tokens, "segment-sum", subject, detail)
    produced = 0
    for segment in segments:
        sent = call.prompt_tokens + produced
        detail = f"segment {segment.segment} was sent {segment.prompt_tokens} tokens, expected {sent}"
        findings.expect(segment.prompt_tokens == sent, "segment-prompt", subject, detail)
        produced += segment.output_tokens
    for segment in segments[:-1]:
        detail = f"segment {segment.segment} of {len(segments)} ended by {segment.ended}"
        findings.expect(segment.ended not in _FINAL, "segment-after-end", subject, detail)


def _check_versions(
    findings: Findings, call: RecordedCall, segments: list[Row], timelines: Timelines, subject: str
) -> None:
    for before, after in pairwise(segments):
        detail = f"segment {after.segment} at version {after.version} after {before.version}"
        findings.expect(after.version >= before.version, "request-went-back", subject, detail)
    for segment in segments:
        _check_engine(findings, segment, timelines, f"{subject} segment {segment.segment}")
    if call.state not in _DELIVERED or sum(segment.output_tokens for segment in segments) != len(call.versions):
        return
    went_back = int((np.diff(call.versions) < 0).sum())
    findings.expect(went_back == 0, "request-went-back", subject, f"spans {call.spans}")
    differing, start = 0, 0
    for segment in segments:
        end = start + segment.output_tokens
        mixed = end - segment.mixed_kv_tokens
        differing += int((call.versions[start:mixed] != segment.version).sum())
        differing += int((call.versions[mixed:end] <= segment.version).sum())
        if segment.mixed_kv_tokens:
            _check_mixed(findings, segment, call.versions[mixed:end], timelines, subject)
        start = end
    findings.expect(differing == 0, "token-version-differs", subject, f"{differing} tokens; spans {call.spans}")


def _check_mixed(findings: Findings, segment: Row, versions: np.ndarray, timelines: Timelines, subject: str) -> None:
    """Tokens over KV of older weights: only where a publish brought their version to this engine under the request."""
    timeline = timelines.cells.get(segment.cell)
    ended = segment.ended_at if segment.ended_at is not None else np.inf
    swaps = timeline.swapped if timeline is not None else []
    during = any(swap.start <= ended and swap.end >= segment.started_at for swap in swaps)
    detail = f"segment {segment.segment}: {segment.mixed_kv_tokens} tokens, no such publish at cell {segment.cell}"
    findings.expect(during, "mixed-kv-unexplained", subject, detail)
    for version in sorted({int(version) for version in versions}):
        refusal = timelines.servable(version, ended)
        findings.expect(refusal is None, "unpublished-version", subject, f"{segment.engine}: {refusal}")


def _check_engine(findings: Findings, segment: Row, timelines: Timelines, subject: str) -> None:
    refusal = timelines.servable(segment.version, segment.started_at)
    findings.expect(refusal is None, "unpublished-version", subject, f"{segment.engine}: {refusal}")
    published = timelines.published_at(segment.cell, segment.started_at)
    detail = f"{segment.engine} at version {segment.version}, published {published}"
    findings.expect(published is None or segment.version >= published, "stale-engine", subject, detail)
    timeline = timelines.cells.get(segment.cell)
    away = timeline is not None and any(interval.holds(segment.started_at) for interval in timeline.training)
    findings.expect(not away, "served-while-away", subject, f"{segment.engine} of cell {segment.cell}")
    booted = timelines.boot_of(segment.cell, segment.boot_epoch)
    detail = f"cell {segment.cell}, boot epoch {segment.boot_epoch}"
    findings.expect(booted is not None, "segment-boot-missing", subject, detail)
