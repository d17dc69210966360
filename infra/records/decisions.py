"""Writing the ledger and the transitions; reading the ledger back."""

from collections.abc import Sequence

from sqlalchemy import Connection, Engine, insert, select
from sqlalchemy.exc import IntegrityError

from infra.records.schema import ledger, transitions
from workflows.messages.control import LedgerEntry
from workflows.messages.transition import TransitionReport


def add_entries(engine: Engine, entries: Sequence[LedgerEntry]) -> None:
    """Append entries in order; one whose token is known already is left alone."""
    with engine.begin() as connection:
        tokens = [entry.token for entry in entries]
        known = set(connection.scalars(select(ledger.c.token).where(ledger.c.token.in_(tokens))))
        fresh = [entry.model_dump(mode="json") for entry in entries if entry.token not in known]
        if fresh:
            connection.execute(insert(ledger), fresh)


def add_transition(engine: Engine, report: TransitionReport) -> None:
    """Record a transition once."""
    row = report.model_dump(mode="json", include={"transition", "run", "cell", "started_at", "ended_at"})
    row |= {
        "direction": report.direction.value,
        "result": report.result.value,
        "steps": [step.model_dump(mode="json") for step in report.steps],
        "figures": {**report.figures.model_dump(mode="json"), "reason": report.reason, "verbs": list(report.verbs)},
    }
    try:
        with engine.begin() as connection:
            connection.execute(insert(transitions).values(**row))
    except IntegrityError:
        with engine.connect() as connection:
            _require_known(connection, report.transition)


def _require_known(connection: Connection, name: str) -> None:
    """A retry of what is recorded is fine; any other refusal of the database is not."""
    if connection.execute(select(transitions.c.transition).where(transitions.c.transition == name)).first() is None:
        raise RuntimeError(f"{name} could not be recorded")
