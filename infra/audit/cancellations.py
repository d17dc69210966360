"""What the ledger explains about bursts: which were cancelled, which were shuffled.

Executions of a cancelled one that were closed while queued leave no row, and its groups are given up. The groups of a
shuffled one (`streaming: false, shuffle: true`) go to its steps in an order of their own.
"""

import re
from dataclasses import dataclass

from sqlalchemy import Engine, select

from infra.audit.reader import stream
from infra.records import schema

_DISPATCH = re.compile(r"(\S+): \d+ groups, \d+ executions")
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


def read_shuffled(engine: Engine) -> frozenset[str]:
    """Bursts whose groups were shuffled over their steps."""
    table, bursts = schema.ledger, set[str]()
    for row in stream(engine, select(table).where(table.c.kind == "dispatch")):
        match = _DISPATCH.fullmatch(str(row.reasons[0])) if len(row.reasons) > 1 else None
        if match and row.reasons[1] == "shuffled over its steps":
            bursts.add(match[1])
    return frozenset(bursts)
