"""The rows the proxy writes, as functions of plain values. Each returns a write for the recorder.

A call's row is complete before the answer's end is sent; until the answer has been received it is `undelivered`.
"""

import time
from typing import Any

from sqlalchemy import Connection, delete, update

from infra.records import schema
from infra.records.tokens import pack_ids, pack_logprobs
from workers.proxy.continuation import Continuation
from workers.proxy.history import Prompt
from workers.proxy.recorder import Write
from workers.proxy.statements import add, change, put


def open_call(
    *,
    call: str,
    execution: str,
    attempt: int,
    sequence: int,
    dialect: str,
    role: str,
    prompt: Prompt,
    chain: str,
    requested: dict[str, Any],
    imposed: dict[str, Any],
    request_sha256: str,
    started_at: float,
) -> Write:
    """A call has been admitted; its prompt is known."""
    row = {
        "call": call,
        "execution": execution,
        "attempt": attempt,
        "sequence": sequence,
        "dialect": dialect,
        "role": str(role),
        "state": "open",
        "started_at": started_at,
        "parent_call": prompt.parent,
        "shared_tokens": prompt.shared,
        "fork_reason": prompt.fork_reason and str(prompt.fork_reason),
        "input_tail": pack_ids(prompt.own),
        "prompt_tokens": len(prompt),
        "output_tokens": 0,
        "requested": requested,
        "imposed": imposed,
        "request_sha256": request_sha256,
        "history_sha256": chain,
    }  # fmt: skip
    return lambda connection: add(connection, schema.calls, row)


def answer_call(call: str, so_far: Continuation, finish: str, chain: str, execution: str, model_calls: int) -> Write:
    """The answer is complete but not yet received."""
    values = {
        "state": "undelivered",
        "ended_at": time.time(),
        "output_ids": pack_ids(so_far.ids),
        "output_logprobs": pack_logprobs(so_far.logprobs),
        "version_spans": [list(span) for span in so_far.spans],
        "output_tokens": len(so_far.ids),
        "finish": finish,
        "history_sha256": chain,
    }

    def write(connection: Connection) -> None:
        change(connection, schema.calls, {"call": call}, values)
        change(connection, schema.executions, {"execution": execution}, {"model_calls": model_calls})

    return write


def call_state(call: str, state: str, error: str | None = None) -> Write:
    """Delivered after all, or failed."""
    values: dict[str, Any] = {"state": state}
    if error is not None:
        values |= {"error": error[:2000], "ended_at": time.time()}

    def write(connection: Connection) -> None:
        change(connection, schema.calls, {"call": call}, values)

    return write


def first_call(execution: str, at: float) -> Write:
    """When an execution first called the model; never moved."""
    table = schema.executions
    statement = update(table).where(table.c.execution == execution, table.c.first_call_at.is_(None))

    def write(connection: Connection) -> None:
        connection.execute(statement.values(first_call_at=at))

    return write


def put_engine(row: dict[str, Any]) -> Write:
    """An engine as the route table has it."""
    return lambda connection: put(connection, schema.engines, "engine", {**row, "updated_at": time.time()})


def put_routes(routes: dict[str, str]) -> Write:
    """New homes of executions; an empty engine removes the route."""

    def write(connection: Connection) -> None:
        for execution, engine in routes.items():
            if engine:
                row = {"execution": execution, "engine": engine, "updated_at": time.time()}
                put(connection, schema.routes, "execution", row)
            else:
                connection.execute(delete(schema.routes).where(schema.routes.c.execution == execution))

    return write


def fail_orphans() -> Write:
    """At boot: calls and segments that were open when the proxy died."""
    calls, segments = schema.calls, schema.segments

    def write(connection: Connection) -> None:
        now = time.time()
        failed = {"state": "failed", "error": "the proxy was restarted", "ended_at": now}
        connection.execute(update(calls).where(calls.c.state == "open").values(failed))
        connection.execute(update(segments).where(segments.c.ended.is_(None)).values(ended="died", ended_at=now))

    return write
