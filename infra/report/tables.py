"""Decisions and transitions as flat rows, for people's own tools: CSV and Parquet.

`DECISIONS` and `TRANSITIONS` name the columns and their types; a value that is not known is None. Moments are seconds
since the epoch (`at`, `..._at`), durations and gains seconds.
"""

import csv
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.report.account import Account
from infra.report.changes import Change, Entry, roles_text

Row = dict[str, Any]
_RATES = ("sampled_tokens", "trained_tokens", "executions")

_COST: dict[str, type] = {
    "requests_moved": int,
    "executions_rerouted": int,
    "pause_seconds": float,
    "longest_pause_seconds": float,
    "kv_tokens_reused": int,
    "kv_tokens_recomputed": int,
    "kv_tokens_handed_over": int,
    "kv_bytes": int,
    "weights_bytes": int,
}
DECISIONS: dict[str, type] = {
    "token": str,
    "at": float,
    "time": str,
    "kind": str,
    "policy": str,
    "cell": int,
    "together": str,
    "direction": str,
    "reason": str,
    "detail": str,
    "waterlevel": int,
    "dispatched": int,
    "launched": int,
    "finished": int,
    "capacity": int,
    "topology_before": str,
    "bottleneck": str,
    "expected_gain_seconds": float,
    "iteration_seconds": float,
    "migration_seconds": float,
    "result": str,
    "ended_at": float,
    "change_seconds": float,
    "topology_after": str,
    **_COST,
    **{f"{rate}_per_second_{when}": float for when in ("before", "after") for rate in _RATES},
    "moves_weighed_together": int,
    "realised_gain_seconds": float,
    "judged_gain_seconds": float,
    "prediction_error": float,
    "about": str,
}
TRANSITIONS: dict[str, type] = {
    "transition": str,
    "cell": int,
    "direction": str,
    "result": str,
    "started_at": float,
    "time": str,
    "ended_at": float,
    "seconds": float,
    "steps": str,
    "verbs": str,
    "topology_before": str,
    "topology_after": str,
    **_COST,
    "decision": str,
    "reason": str,
}


def decision_row(entry: Entry, account: Account) -> Row:
    """One entry of the ledger, with what came of it if it moved cells."""
    row: Row = dict.fromkeys(DECISIONS)
    row |= {name: getattr(entry, name) for name in DECISIONS if name in Entry.__dataclass_fields__}
    row |= {
        "time": _time(entry.at),
        "together": ",".join(map(str, entry.together)),
        "direction": entry.heading or entry.direction or "",
        "reason": entry.reason,
        "detail": entry.detail,
        "waterlevel": entry.waterlevel,
        "topology_before": entry.topology,
    }
    move = account.move_of(entry)
    if move is None:
        return row
    row |= {
        "result": move.result,
        "ended_at": move.ended_at,
        "change_seconds": sum(change.seconds for change in move.changes),
        "topology_before": move.topology_before,
        "topology_after": move.topology_after,
        "moves_weighed_together": move.shared,
        "realised_gain_seconds": move.realised_gain_seconds,
        "judged_gain_seconds": move.judged_gain_seconds,
        "prediction_error": move.prediction_error,
    }
    for when, rates in (("before", move.before), ("after", move.after)):
        row |= {f"{rate}_per_second_{when}": getattr(rates, rate) if rates else None for rate in _RATES}
    return row | _cost(move.changes, account)


def transition_row(change: Change, account: Account, decisions: Mapping[str, str]) -> Row:
    """One transition. `decisions`: transition -> token of the decision behind it."""
    return {
        "transition": change.transition,
        "cell": change.cell,
        "direction": change.direction,
        "result": change.result,
        "started_at": change.started_at,
        "time": _time(change.started_at),
        "ended_at": change.ended_at,
        "seconds": change.seconds,
        "steps": "; ".join(_step(step) for step in change.steps),
        "verbs": ", ".join(change.verbs),
        "topology_before": roles_text(account.roles.before(change.started_at)),
        "topology_after": roles_text(account.roles.at(change.ended_at)),
        **_cost((change,), account),
        "decision": decisions.get(change.transition, ""),
        "reason": str(change.figures.get("reason") or ""),
    }


def decision_rows(account: Account, entries: Iterable[Entry]) -> list[Row]:
    return [decision_row(entry, account) for entry in entries]


def transition_rows(account: Account) -> list[Row]:
    """Every transition of the run, in order."""
    decisions = {change.transition: token for token, move in account.moves.items() for change in move.changes}
    return [transition_row(change, account, decisions) for change in account.records.changes]


def write_csv(rows: Iterable[Row], columns: Mapping[str, type], path: Path) -> None:
    """What is not known is an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(rows: list[Row], columns: Mapping[str, type], path: Path) -> None:
    """Columns keep their types also where no row has a value."""
    import pyarrow
    from pyarrow import parquet

    types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    fields = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=fields), path)


def _cost(changes: Iterable[Change], account: Account) -> Row:
    changes = tuple(changes)
    moved = account.moved_by(changes)
    return {
        "requests_moved": moved.requests,
        "executions_rerouted": sum(change.figure("executions_rerouted") for change in changes),
        "pause_seconds": moved.pause_seconds,
        "longest_pause_seconds": moved.longest_pause_seconds,
        "kv_tokens_reused": moved.kv_reused,
        "kv_tokens_recomputed": moved.kv_recomputed,
        "kv_tokens_handed_over": sum(change.figure("kv_tokens_reused") for change in changes),
        "kv_bytes": sum(change.figure("kv_bytes") for change in changes),
        "weights_bytes": sum(change.figure("weights_bytes") for change in changes),
    }


def _step(step: Mapping[str, Any]) -> str:
    return f"{step['name']} {step['seconds']:.3f} s{'' if step.get('ok', True) else ' failed'}"


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
