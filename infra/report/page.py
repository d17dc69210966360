"""The page of `gyre report`: one file, nothing loaded from anywhere, texts shown as text and never as markup."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from infra.report import plots
from infra.report.account import Account
from infra.report.moves import Move, Rates
from infra.report.queries import NEAR_SHARE, Durations, durations

MOVES_SHOWN = 200
_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Table:
    rows: Sequence[Sequence[str]]
    heads: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    title: str
    plots: Sequence[str] = ()
    tables: Sequence[Table] = ()
    note: str = ""


def page(account: Account) -> str:
    """The page as HTML."""
    from jinja2 import Environment

    records = account.records
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        _TEMPLATE.read_text(encoding="utf-8")
    )
    return template.render(
        title=f"OpenGyre run {records.run}",
        lead=_lead(account),
        verdict=account.totals.verdict,
        sections=_sections(account),
    )


def figures(account: Account) -> dict[str, Any]:
    """What the page shows, as plain data."""
    found, totals = durations(account.records.executions), account.totals
    ages = [age for update in account.records.updates for age in update.staleness]
    return {
        "run": account.records.run,
        "begin": account.records.begin,
        "end": account.records.end,
        "totals": asdict(totals) | {"spent": totals.spent, "net": totals.net, "verdict": totals.verdict},
        "cells": [asdict(cell) for cell in account.cells],
        "queries": {
            "closed": len(found.queries),
            "longest_seconds": [round(query.seconds, 3) for query in found.queries],
            "near_time_out": sum(query.near_limit for query in found.queries),
            "executions": found.executions,
            "executions_near_time_out": found.near_limit,
            "time_outs_seconds": found.limit_seconds,
            "ends": found.ends,
        },
        "staleness": {"executions": len(ages), "mean": fmean(ages) if ages else None},
        "rewards": [fmean(update.rewards) for update in account.records.updates if update.rewards],
    }


def _lead(account: Account) -> str:
    records = account.records
    if records.end <= records.begin:
        return "Nothing is on record yet."
    size, name = plots.unit(records.end - records.begin)
    begin, end = (
        datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S") for moment in (records.begin, records.end)
    )
    committed = sum(update.committed_at is not None for update in records.updates)
    closed = sum(fact.closed_at is not None for fact in records.executions)
    policies = sorted({entry.policy for entry in records.entries if entry.policy})
    return (
        f"{begin} to {end}, the last record ({(records.end - records.begin) / size:.1f} {name}); {len(records.slots)} "
        f"cells; {closed} of {len(records.executions)} executions closed; {committed} updates; "
        f"{'policy ' + ', '.join(policies) if policies else 'no decision yet'}"
    )


def _sections(account: Account) -> list[Section]:
    found = durations(account.records.executions)
    if not found.queries:
        found = durations(account.records.executions, "evaluate")
    return [
        Section("Totals", tables=[_totals(account)], note=_TOTALS_NOTE)
        if account.records.entries
        else Section("Totals"),
        Section("Roles over time", plots=_if(account.roles.spans, lambda: plots.roles(account))),
        Section("Waterlevel and capacity", plots=_if(account.records.entries, lambda: plots.waterlevel(account))),
        Section(
            "How long queries take",
            plots=_if(any(query.seconds > 0 for query in found.queries), lambda: plots.longest(found)),
            tables=[_ends(found)] if found.executions else [],
            note=f"Near the time-out: ended at it, or after {NEAR_SHARE:.0%} of it.",
        ),
        Section("Trainer and engine time", plots=_if(account.cells, lambda: plots.use(account))),
        Section("Staleness and reward", plots=_outcomes(account)),
        Section("Moves", tables=_moves(account), note=_MOVES_NOTE),
        Section("Refusals", tables=_refusals(account), note="One entry of the ledger for every change of the reason."),
        Section("What a transition takes", tables=_steps(account), note="Mean seconds of each step, of those done."),
    ]


_TOTALS_NOTE = (
    "Gained are cell-seconds of micro-steps while the slots left in rollout covered all the work that was out "
    "(w <= C_R). Spent are the cell-seconds of changing roles."
)
_MOVES_NOTE = (
    "Rates are sampled tokens, trained tokens and finished executions per second, before and after, in windows that no "
    "other role change reaches into; overlapping moves are weighed together. Gains are seconds per optimizer step."
)


def _if(there: Any, draw: Callable[[], str]) -> list[str]:
    return [draw()] if there else []


def _outcomes(account: Account) -> list[str]:
    updates = account.records.updates
    drawn = _if(any(update.staleness for update in updates), lambda: plots.staleness(account))
    return drawn + _if(any(update.rewards for update in updates), lambda: plots.reward(account))


def _totals(account: Account) -> Table:
    return Table(rows=totals_rows(account))


def totals_rows(account: Account) -> list[tuple[str, str]]:
    """The totals in words: what was gained, what it cost."""
    totals = account.totals
    error = totals.mean_prediction_error
    return [
        ("training gained", f"{totals.trained_free:.1f} cell-seconds while the slots left covered the work"),
        ("training paid with rollout", f"{totals.trained_full:.1f} cell-seconds while work waited for slots"),
        ("training in vain", f"{totals.trained_in_vain:.1f} cell-seconds that count in no update (yet)"),
        (
            "changing roles",
            ", ".join(f"{name} {value:.1f}" for name, value in totals.changing.items()) + " cell-seconds",
        ),
        ("net", f"{totals.net:+.1f} cell-seconds"),
        ("transitions", ", ".join(f"{count} {name}" for name, count in totals.results.items()) or "none"),
        (
            "requests moved",
            f"{totals.requests_moved}, pauses {totals.pause_seconds:.2f} s in all, "
            f"{totals.longest_pause_seconds:.2f} s the longest; {totals.executions_rerouted} executions rerouted",
        ),
        ("KV of moved requests", f"{totals.kv_tokens_reused} tokens reused, {totals.kv_tokens_recomputed} recomputed"),
        ("bytes moved", f"{totals.kv_bytes:,} of KV, {totals.weights_bytes:,} of weights"),
        (
            "publishes",
            f"{totals.publishing:.1f} cell-seconds, requests paused {totals.publish_pause_seconds:.2f} s "
            "(any policy has them)",
        ),
        ("rollout", f"{totals.serving:.1f} cell-seconds serving, {totals.rollout_idle:.1f} idle while work was out"),
        ("trainer", f"{totals.updating:.1f} cell-seconds of combine and update, {totals.training_waited:.1f} waiting"),
        ("parked", f"{totals.parked:.1f} cell-seconds"),
        ("requests broken off", f"{totals.broken_requests}, gone on elsewhere after an engine had failed"),
        (
            "predictions",
            "none" if error is None else f"{totals.predictions}, off by {error:.0%} on average",
        ),
    ]


def _ends(found: Durations) -> Table:
    near = sum(query.near_limit for query in found.queries)
    ends = ", ".join(f"{count} {name}" for name, count in found.ends.items())
    return Table(
        rows=[
            ("queries closed", f"{len(found.queries)}, of {near} the longest execution ended near or at its time-out"),
            ("executions closed", f"{found.executions}, {found.near_limit} of them near or at their time-out"),
            ("how they ended", ends),
        ]
    )


def _moves(account: Account) -> list[Table]:
    moves = sorted(account.moves.values(), key=lambda move: move.entry.at)[-MOVES_SHOWN:]
    if not moves:
        return []
    heads = ("at", "policy", "cells", "to", "why", "w / C_R", "outcome", "moved", "rates before", "rates after", "gain")
    return [Table(rows=[_move_row(move, account) for move in moves], heads=heads)]


def _move_row(move: Move, account: Account) -> tuple[str, ...]:
    entry = move.entry
    moved = account.moved_by(move.changes)
    seconds = f" in {move.ended_at - entry.at:.1f} s" if move.ended_at is not None else ""
    cost = f"{moved.requests} requests, {moved.pause_seconds:.2f} s" if moved.requests else ""
    return (
        f"+{entry.at - account.records.begin:.1f} s",
        entry.policy,
        ", ".join(map(str, entry.cells)),
        entry.heading.removeprefix("to_"),
        entry.why,
        f"{entry.waterlevel} / {entry.capacity}" if entry.waterlevel is not None else "",
        f"{move.result}{seconds}",
        cost,
        _rates(move.before),
        _rates(move.after),
        gain_text(move),
    )


def gain_text(move: Move) -> str:
    """What was predicted and what came of it; empty where nothing was predicted."""
    expected = move.entry.expected_gain_seconds
    if expected is None:
        return ""
    parts = [f"predicted {expected:.1f} s"]
    if move.realised_gain_seconds is not None and move.prediction_error is not None:
        parts.append(f"realised {move.realised_gain_seconds:.1f} s ({move.prediction_error:.0%} off)")
    if move.judged_gain_seconds is not None:
        parts.append(f"judged {move.judged_gain_seconds:.1f} s")
    return ", ".join(parts)


def _rates(rates: Rates | None) -> str:
    if rates is None:
        return ""
    return f"{rates.sampled_tokens:.0f}, {rates.trained_tokens:.0f}, {rates.executions:.2f}"


def _refusals(account: Account) -> list[Table]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in account.records.entries:
        if entry.kind == "refuse":
            found[entry.policy, entry.reason].append(entry.detail)
    rows = [
        (policy, reason, str(len(details)), details[-1])
        for (policy, reason), details in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    return [Table(rows=rows, heads=("policy", "reason", "entries", "the last one"))] if rows else []


def _steps(account: Account) -> list[Table]:
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for change in account.records.changes:
        for step in change.steps:
            if change.result == "done" and step.get("ok", True):
                seconds[change.direction, step["name"]].append(step["seconds"])
    rows = [
        (direction, step, f"{fmean(values):.3f}", f"{max(values):.3f}", str(len(values)))
        for (direction, step), values in seconds.items()
    ]
    return [Table(rows=rows, heads=("direction", "step", "mean", "longest", "times"))] if rows else []
