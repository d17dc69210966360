"""What must not be taken for a weak policy: executions that ended before they asked the model anything."""

from sqlalchemy import Connection, func, select

from infra.records.schema import executions
from workflows.messages.execution import EndReason

SHOWN_CHARACTERS = 200
_WORDS = {
    EndReason.NEVER_RAN: "could not be started",
    EndReason.CRASHED: "crashed before their first model call",
    EndReason.EXITED: "ended without a single model call",
}


def alarms(connection: Connection) -> list[str]:
    """One line for each burst and kind of end: how many of how many, and what was said of most of them."""
    columns = executions.c
    closed = columns.closed_at.is_not(None)
    finished = select(columns.burst, func.count()).where(closed).group_by(columns.burst)
    totals = {row[0]: row[1] for row in connection.execute(finished)}
    silent = (
        closed & columns.end_reason.in_(list(_WORDS)) & columns.first_call_at.is_(None) & (columns.model_calls == 0)
    )
    query = (
        select(columns.burst, columns.end_reason, columns.harness, columns.detail, func.count().label("count"))
        .where(silent)
        .group_by(columns.burst, columns.end_reason, columns.harness, columns.detail)
        .order_by(columns.burst, columns.end_reason, func.count().desc())
    )
    counts: dict[tuple[str, str, str], int] = {}
    details: dict[tuple[str, str, str], str] = {}
    for row in connection.execute(query).mappings():
        key = (row["burst"], row["end_reason"], row["harness"])
        counts[key] = counts.get(key, 0) + row["count"]
        details.setdefault(key, row["detail"] or "")
    return [_line(key, count, totals[key[0]], details[key]) for key, count in counts.items()]


def _line(key: tuple[str, str, str], count: int, total: int, detail: str) -> str:
    burst, end, harness = key
    told = f": {detail[:SHOWN_CHARACTERS]}" if detail else ""
    return f"burst {burst}: {count} of {total} executions of {harness} {_WORDS[EndReason(end)]}{told}"
