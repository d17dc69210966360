"""Calls read back: full ids through the chain of parents, and what is refused."""

import pytest
from sqlalchemy import insert

from infra.records import schema
from infra.records.calls import calls_of
from infra.records.tokens import pack_ids, pack_logprobs
from workflows.messages.errors import AuditFailure


def row(call, sequence, tail, output, *, parent=None, shared=0, prompt=None):
    return {
        "call": call,
        "execution": "e",
        "attempt": 1,
        "sequence": sequence,
        "dialect": "chat",
        "role": "main",
        "state": "finished",
        "started_at": 1.0,
        "parent_call": parent,
        "shared_tokens": shared,
        "input_tail": pack_ids(tail),
        "prompt_tokens": shared + len(tail) if prompt is None else prompt,
        "output_ids": pack_ids(output),
        "output_logprobs": pack_logprobs([-0.5] * len(output)),
        "version_spans": [[3, 1], [4, len(output) - 1]],
        "output_tokens": len(output),
    }


@pytest.fixture
def read(database):
    def written(*rows):
        with database.begin() as connection:
            for values in rows:
                connection.execute(insert(schema.calls).values(values))
        with database.connect() as connection:
            return calls_of(connection, "e")

    return written


def test_prompts_are_resolved_through_their_parents(read):
    first, second, fork = read(
        row("a", 0, [1, 2, 3], [4, 5]),
        row("b", 1, [6], [7, 8], parent="a", shared=5),
        row("c", 2, [9], [10, 11], parent="b", shared=4),
    )
    assert first.all_ids == (1, 2, 3, 4, 5)
    assert second.prompt_ids == (1, 2, 3, 4, 5, 6)
    assert fork.prompt_ids == (1, 2, 3, 4, 9)
    assert second.versions == (3, 4)
    assert second.output_logprobs == (-0.5, -0.5)


@pytest.mark.parametrize(
    "broken",
    [
        row("b", 1, [6], [7], parent="gone", shared=2),
        row("b", 1, [6], [7], parent="a", shared=9),
        row("b", 1, [6], [7], parent="a", shared=2, prompt=7),
    ],
)
def test_a_broken_chain_is_an_audit_failure(read, broken):
    with pytest.raises(AuditFailure):
        read(row("a", 0, [1, 2, 3], [4, 5]), broken)
