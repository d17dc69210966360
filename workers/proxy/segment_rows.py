"""The rows of segments and of reroute plans, as functions of plain values. Each returns a write for the recorder."""

import time
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from infra.records import schema
from workers.proxy.recorder import Write
from workers.proxy.statements import add, change
from workflows.messages.routing import ReroutePlan

PLANS_KEPT = 256


def open_segment(row: dict[str, Any]) -> Write:
    """A request is about to be sent to an engine."""

    return lambda connection: add(connection, schema.segments, row)


def close_segment(
    call: str,
    segment: int,
    *,
    ended: str,
    output_tokens: int,
    cached_tokens: int | None,
    mixed_kv_tokens: int,
    spoken: tuple[float | None, float | None] = (None, None),
) -> Write:
    """It has ended. `mixed_kv_tokens`: its last tokens, sampled over KV of older weights than their own.

    `spoken`: when its first and its last token came.
    """
    values = {
        "ended": ended,
        "ended_at": time.time(),
        "output_tokens": output_tokens,
        "cached_tokens": cached_tokens,
        "mixed_kv_tokens": mixed_kv_tokens,
        "first_token_at": spoken[0],
        "last_token_at": spoken[1],
    }

    def write(connection: Connection) -> None:
        change(connection, schema.segments, {"call": call, "segment": segment}, values)

    return write


def discard_segments(call: str) -> Write:
    """The call begins again: nothing of what its segments have said counts."""
    values = {"ended": "discarded", "output_tokens": 0, "mixed_kv_tokens": 0}

    def write(connection: Connection) -> None:
        change(connection, schema.segments, {"call": call}, values)

    return write


def open_rids(connection: Connection) -> list[tuple[str, int, str]]:
    """(engine, boot epoch, request id) of what an earlier life of the proxy has left running there."""
    table = schema.segments
    rows = connection.execute(select(table.c.engine, table.c.boot_epoch, table.c.rid).where(table.c.ended.is_(None)))
    return [(row.engine, row.boot_epoch, row.rid) for row in rows]


def put_plan(plan: ReroutePlan, engine: str) -> Write:
    """A reroute's plan, so that the same lease gets the same plan from the next life of the proxy as well."""
    table = schema.reroutes
    row = {"lease": plan.lease, "engine": engine, "plan": plan.model_dump(mode="json"), "made_at": time.time()}

    def write(connection: Connection) -> None:
        connection.execute(insert(table).values(row))
        old = select(table.c.lease).order_by(table.c.made_at.desc()).offset(PLANS_KEPT)
        leases = [lease for (lease,) in connection.execute(old)]
        if leases:
            connection.execute(delete(table).where(table.c.lease.in_(leases)))

    return write


def plans(connection: Connection) -> list[ReroutePlan]:
    """The newest plans, oldest first."""
    table = schema.reroutes
    rows = connection.execute(select(table.c.plan).order_by(table.c.made_at.desc()).limit(PLANS_KEPT))
    return [ReroutePlan.model_validate(plan) for (plan,) in reversed(rows.all())]
