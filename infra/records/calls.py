"""Recorded model calls, read back with their full ids.

A row keeps only what its prompt adds to its parent's ids; the full prompt is the first `shared_tokens` of the parent's
prompt and output, then `input_tail`. Parents always have a lower sequence in the same execution. What is read back is
just as thin: full ids are put together when they are asked for, so reading a long session costs its unique tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, select

from infra.records.schema import calls, segments
from infra.records.token_chain import TokenChain
from infra.records.tokens import ids_array, unpack_logprobs
from workflows.messages.errors import AuditFailure


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One call. `chain`: prompt and output ids, `prompt_tokens` of them the prompt; `output_logprobs`: natural,
    float32, one per output id.

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
    chain: TokenChain
    prompt_tokens: int
    output_logprobs: tuple[float, ...]
    version_spans: tuple[tuple[int, int], ...]
    finish: str | None
    fields: dict[str, Any]

    @property
    def prompt_array(self) -> np.ndarray:
        """All it was conditioned on, int32 [prompt]. A new array, of the whole length: do not keep many."""
        return self.chain.ids(self.prompt_tokens)

    @property
    def output_array(self) -> np.ndarray:
        """What it sampled, int32 [output]."""
        return self.chain.own[self.prompt_tokens - self.shared_tokens :]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.prompt_array.tolist())

    @property
    def output_ids(self) -> tuple[int, ...]:
        return tuple(self.output_array.tolist())

    @property
    def all_ids(self) -> tuple[int, ...]:
        return tuple(self.chain.ids().tolist())

    @property
    def versions(self) -> tuple[int, ...]:
        """Weight version of every output id."""
        return tuple(version for version, count in self.version_spans for _ in range(count))


def calls_of(connection: Connection, execution: str) -> list[RecordedCall]:
    """Every call of an execution in order of arrival, failed ones included.

    Raises AuditFailure if a parent is missing or shorter than what is shared with it.
    """
    rows = connection.execute(select(calls).where(calls.c.execution == execution).order_by(calls.c.sequence))
    found: dict[str, RecordedCall] = {}
    for row in rows:
        found[row.call] = _resolve(row, found)
    return list(found.values())


def segments_of(connection: Connection, call: str) -> list[dict[str, Any]]:
    """The segments of a call in order, as plain rows."""
    query = select(segments).where(segments.c.call == call).order_by(segments.c.segment)
    return [dict(row._mapping) for row in connection.execute(query)]


def _resolve(row: Row[Any], found: dict[str, RecordedCall]) -> RecordedCall:
    parent = found.get(row.parent_call) if row.shared_tokens else None
    if row.shared_tokens > (0 if parent is None else len(parent.chain)):
        raise AuditFailure(f"call {row.call} shares {row.shared_tokens} ids with {row.parent_call}, which lacks them")
    tail = ids_array(row.input_tail)
    if row.shared_tokens + len(tail) != row.prompt_tokens:
        length = row.shared_tokens + len(tail)
        raise AuditFailure(f"call {row.call} has {length} prompt ids, {row.prompt_tokens} were recorded")
    return RecordedCall(
        call=row.call,
        execution=row.execution,
        sequence=row.sequence,
        state=row.state,
        role=row.role,
        parent_call=row.parent_call,
        shared_tokens=row.shared_tokens,
        fork_reason=row.fork_reason,
        chain=TokenChain(parent and parent.chain, row.shared_tokens, np.concatenate([tail, ids_array(row.output_ids)])),
        prompt_tokens=row.prompt_tokens,
        output_logprobs=tuple(unpack_logprobs(row.output_logprobs)),
        version_spans=tuple((int(version), int(count)) for version, count in row.version_spans or ()),
        finish=row.finish,
        fields={key: value for key, value in row._mapping.items() if key not in _TOKENS},
    )


_TOKENS = ("input_tail", "output_ids", "output_logprobs")
