"""What a cancelled burst explains: executions closed while queued leave no row, its groups are given up.

Read from the ledger, where the Scheduler writes why groups and executions went.
"""

import re
from dataclasses import dataclass

from sqlalchemy import Engine, select

from infra.audit.reader import stream
from infra.records import schema

_NOTE = re.compile(r"burst (\S+) cancelled: (\d+) queued executions closed")


@dataclass(frozen=True)
class Cancellations:
    """Names of cancelled bursts, and how many of their executions were closed before they were launched."""

    bursts: frozenset[str]
    closed_while_queued: int


def read_cancellations(engine: Engine) -> Cancellations:
    """All cancellations of the run."""
    table, bursts, closed = schema.ledger, set[str](), 0
    for row in stream(engine, select(table).where(table.c.kind == "close")):
        for match in filter(None, (_NOTE.fullmatch(str(reason)) for reason in row.reasons)):
            bursts.add(match[1])
            closed += int(match[2])
    return Cancellations(frozenset(bursts), closed)
