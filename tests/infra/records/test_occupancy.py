"""How busy cells were, from their claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert

from infra.records import schema
from infra.records.occupancy import busy_shares, union_seconds


def claim(cell: int, index: int, claimed: float, done: float | None, boot: int = 1) -> dict[str, object]:
    key = {"batch": "b", "micro_step": index, "attempt": 1}
    return key | {"cell": cell, "boot_epoch": boot, "version": 0, "claimed_at": claimed, "done_at": done}


def test_overlapping_claims_count_once_and_open_ones_until_now(database) -> None:
    rows = [
        claim(0, 0, 90.0, 102.0),
        claim(0, 1, 101.0, 104.0),
        claim(1, 2, 108.0, None),
        claim(2, 3, 80.0, 95.0),
        claim(3, 4, 50.0, None, boot=1),
        claim(3, 5, 109.0, 110.0, boot=2),
    ]
    with database.begin() as connection:
        connection.execute(insert(schema.claims), rows)
    shares = busy_shares(database, 100.0, 110.0)
    assert shares == {0: pytest.approx(0.4), 1: pytest.approx(0.2), 3: pytest.approx(0.1)}
    assert busy_shares(database, 96.0, 99.0)[0] == 1.0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=8))
def test_a_union_covers_each_second_once(spans: list[list[int]]) -> None:
    seconds = {second for start, end in spans for second in range(start, end)}
    assert union_seconds((float(start), float(end)) for start, end in spans) == len(seconds)
