"""The recorded model calls of one execution, as the tree takes them: each with only what it adds to its parent's ids.

Nothing is expanded here, and no id becomes a Python object: an execution of a million tokens is read as a million
tokens, however often later calls were conditioned on the earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, Row, select

from infra.records.schema import calls
from infra.records.tokens import ids_array, logprobs_array
from workflows.messages.errors import AuditFailure


@dataclass(frozen=True, eq=False)
class Call:
    """One model call.

    Its prompt is the first `shared` ids of `parent`'s prompt and output, then `tail`. `tail`, `output`: int32 ids;
    `logprobs`: float32, natural, one per output id; `spans`: (weight version, tokens) in order, together the output.
    `sequence` is the order of arrival. `trainable`: its answer was delivered whole, so its output may be a target.
    """

    call: str
    sequence: int
    role: str
    tail: np.ndarray
    output: np.ndarray
    logprobs: np.ndarray
    spans: tuple[tuple[int, int], ...]
    parent: str | None = None
    shared: int = 0
    fork_reason: str | None = None
    state: str = "finished"

    @property
    def prompt_tokens(self) -> int:
        return self.shared + len(self.tail)

    @property
    def trainable(self) -> bool:
        """Delivered whole, with something before it and something said."""
        return self.state == "finished" and self.prompt_tokens > 0 and len(self.output) > 0

    @property
    def versions(self) -> np.ndarray:
        """Weight version of every output id, int64."""
        return np.repeat([version for version, _ in self.spans], [count for _, count in self.spans]).astype(np.int64)


def load_calls(connection: Connection, execution: str) -> list[Call]:
    """Every call of an execution in order of arrival, those without an answer included.

    Raises AuditFailure for a row whose ids, log-probs and version spans do not belong together.
    """
    query = select(calls).where(calls.c.execution == execution).order_by(calls.c.sequence)
    return [_call(row) for row in connection.execute(query)]


def by_arrival(found: Sequence[Call]) -> list[Call]:
    """In order of arrival."""
    return sorted(found, key=lambda call: call.sequence)


def _call(row: Row) -> Call:
    call = Call(
        call=row.call,
        sequence=row.sequence,
        role=row.role,
        tail=ids_array(row.input_tail),
        output=ids_array(row.output_ids),
        logprobs=logprobs_array(row.output_logprobs),
        spans=tuple((int(version), int(count)) for version, count in row.version_spans or ()),
        parent=row.parent_call if row.shared_tokens else None,
        shared=row.shared_tokens,
        fork_reason=row.fork_reason,
        state=row.state,
    )
    if call.prompt_tokens != row.prompt_tokens:
        raise AuditFailure(f"call {call.call} has {call.prompt_tokens} prompt ids, {row.prompt_tokens} were recorded")
    lengths = {len(call.output), len(call.logprobs), sum(count for _, count in call.spans)}
    if call.state == "finished" and len(lengths) > 1:
        raise AuditFailure(f"call {call.call} has ids, log-probs and version spans of different lengths")
    return call
