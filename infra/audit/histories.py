"""The calls of one execution, with the exact ids each was conditioned on, rebuilt from shared prefixes."""

from dataclasses import dataclass

import numpy as np
import zstandard
from sqlalchemy import Engine, Row, select

from infra.audit.reader import stream
from infra.records import schema


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One row of `calls`, decoded. `tail`, `output`: int32 [t], [o]; `logprobs`: float32 [l], l == o if sound."""

    call: str
    sequence: int
    state: str
    parent: str | None
    shared: int
    tail: np.ndarray
    prompt_tokens: int
    has_output: bool
    output: np.ndarray
    logprobs: np.ndarray
    output_tokens: int
    spans: tuple[tuple[int, int], ...]
    imposed: dict
    role: str = "main"

    @property
    def versions(self) -> np.ndarray:
        """Weight version of every output token, int64 [sum of spans]."""
        return np.repeat([version for version, _ in self.spans], [count for _, count in self.spans]).astype(np.int64)


class CallHistory:
    """The calls of one execution by id, in order of arrival."""

    def __init__(self, execution: str, calls: dict[str, RecordedCall]) -> None:
        self.execution = execution
        self.calls = calls

    def full_ids(self, call: str) -> np.ndarray | None:
        """Prompt and output ids of `call`, int32 [n]; None if the chain of parents does not give them all."""
        record = self.calls[call]
        ids = np.empty(record.shared + len(record.tail) + len(record.output), dtype=np.int32)
        ids[record.shared :] = np.concatenate([record.tail, record.output])
        open_until, steps = record.shared, 0
        while open_until > 0:
            parent = self.calls.get(record.parent or "")
            steps += 1
            if parent is None or steps > len(self.calls):
                return None
            own = np.concatenate([parent.tail, parent.output])
            if parent.shared + len(own) < open_until:
                return None
            if parent.shared < open_until:
                ids[parent.shared : open_until] = own[: open_until - parent.shared]
                open_until = parent.shared
            record = parent
        return ids


def load_history(engine: Engine, execution: str) -> CallHistory:
    """All calls of `execution`."""
    table = schema.calls
    query = select(table).where(table.c.execution == execution).order_by(table.c.sequence)
    return CallHistory(execution, {row.call: _record(row) for row in stream(engine, query)})


def _record(row: Row) -> RecordedCall:
    return RecordedCall(
        call=row.call,
        sequence=row.sequence,
        state=row.state,
        parent=row.parent_call,
        shared=row.shared_tokens,
        tail=_array(row.input_tail, "<i4"),
        prompt_tokens=row.prompt_tokens,
        has_output=row.output_ids is not None,
        output=_array(row.output_ids, "<i4"),
        logprobs=_array(row.output_logprobs, "<f4"),
        output_tokens=row.output_tokens,
        spans=tuple((int(version), int(count)) for version, count in row.version_spans or ()),
        imposed=row.imposed or {},
        role=row.role,
    )


def _array(blob: bytes | None, dtype: str) -> np.ndarray:
    return np.frombuffer(b"" if blob is None else zstandard.decompress(blob), dtype=dtype)
