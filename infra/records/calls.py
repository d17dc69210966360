"""Recorded model calls, read back with their full ids.

A row keeps only what its prompt adds to its parent's ids; the full prompt is the first `shared_tokens` of the parent's
prompt and output, then `input_tail`. Parents always have a lower sequence in the same execution.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from infra.records.schema import calls, segments
from infra.records.tokens import unpack_ids, unpack_logprobs
from workflows.messages.errors import AuditFailure


@dataclass(frozen=True)
class RecordedCall:
    """One call. `prompt_ids`: all it was conditioned on; `output_logprobs`: natural, float32, one per output id.

    `version_spans`: ordered (weight version, tokens), summing to the output's length. `fields`: every other column.
    """

    call: str
    execution: str
    sequence: int
    state: str
    role: str
    parent_call: str | None
    shared_tokens: int
    fork_reason: str | None
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    output_logprobs: tuple[float, ...]
    version_spans: tuple[tuple[int, int], ...]
    finish: str | None
    fields: dict[str, Any]

    @property
    def all_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.output_ids

    @property
    def versions(self) -> tuple[int, ...]:
        """Weight version of every output id."""
        return tuple(version for version, count in self.version_spans for _ in range(count))


def calls_of(connection: Connection, execution: str) -> list[RecordedCall]:
    """Every call of an execution in order of arrival, failed ones included.

    Raises AuditFailure if a parent is missing or shorter than what is shared with it.
    """
    rows = connection.execute(select(calls).where(calls.c.execution == execution).order_by(calls.c.sequence)).all()
    found: dict[str, RecordedCall] = {}
    for row in rows:
        found[row.call] = _resolve(row, found)
    return list(found.values())


def segments_of(connection: Connection, call: str) -> list[dict[str, Any]]:
    """The segments of a call in order, as plain rows."""
    query = select(segments).where(segments.c.call == call).order_by(segments.c.segment)
    return [dict(row._mapping) for row in connection.execute(query)]


def _resolve(row: Row[Any], found: dict[str, RecordedCall]) -> RecordedCall:
    shared: tuple[int, ...] = ()
    if row.shared_tokens:
        parent = found.get(row.parent_call)
        if parent is None or len(parent.all_ids) < row.shared_tokens:
            raise AuditFailure(
                f"call {row.call} shares {row.shared_tokens} ids with {row.parent_call}, which lacks them"
            )
        shared = parent.all_ids[: row.shared_tokens]
    prompt = (*shared, *unpack_ids(row.input_tail))
    if len(prompt) != row.prompt_tokens:
        raise AuditFailure(f"call {row.call} has {len(prompt)} prompt ids, {row.prompt_tokens} were recorded")
    return RecordedCall(
        call=row.call,
        execution=row.execution,
        sequence=row.sequence,
        state=row.state,
        role=row.role,
        parent_call=row.parent_call,
        shared_tokens=row.shared_tokens,
        fork_reason=row.fork_reason,
        prompt_ids=prompt,
        output_ids=tuple(unpack_ids(row.output_ids)),
        output_logprobs=tuple(unpack_logprobs(row.output_logprobs)),
        version_spans=tuple((int(version), int(count)) for version, count in row.version_spans or ()),
        finish=row.finish,
        fields=dict(row._mapping),
    )
