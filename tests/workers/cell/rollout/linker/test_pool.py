import pytest
import torch

from workers.cell.rollout.linker.pool import PagePool


@pytest.fixture
def pool() -> PagePool:
    return PagePool(pages=4, page_bytes=8)


def rows(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(-1, 1).expand(-1, 8).contiguous()


def test_pages_come_back_as_they_were(pool):
    assert pool.put(["a", "b"], rows(1, 2)) == 2
    assert torch.equal(pool.rows(["b", "a"]), rows(2, 1))
    assert pool.rows(["a", "x"]) is None
    assert pool.prefix(["a", "b", "x", "a"]) == 2


def test_the_end_of_an_old_prefix_goes_first(pool):
    pool.put(["a", "b", "c"], rows(1, 2, 3))
    pool.put(["x", "y"], rows(8, 9))
    assert pool.prefix(["a", "b", "c"]) == 2
    assert torch.equal(pool.rows(["a", "b", "x", "y"]), rows(1, 2, 8, 9))


def test_pinned_pages_stay_and_what_does_not_fit_is_refused(pool):
    pool.put(["a", "b", "c"], rows(1, 2, 3))
    pool.pin(["a", "b", "c", "unknown"])
    assert pool.pinned == 3
    assert pool.put(["x", "y"], rows(8, 9)) == 1, "one slot is free, nothing may be evicted"
    assert torch.equal(pool.rows(["a", "b", "c", "x"]), rows(1, 2, 3, 8))
    assert pool.unpin_all() == 3
    assert pool.put(["y", "z"], rows(9, 10)) == 2


def test_a_prefix_never_evicts_itself(pool):
    assert pool.put(["a", "b", "c", "d", "e"], rows(1, 2, 3, 4, 5)) == 4
    assert torch.equal(pool.rows(["a", "b", "c", "d"]), rows(1, 2, 3, 4))


def test_a_flush_hides_everything_but_keeps_pinned_pages_readable(pool):
    pool.put(["a", "b"], rows(1, 2))
    pool.pin(["a"])
    before = pool.readable("a")
    pool.drop_all()
    assert pool.prefix(["a"]) == 0
    assert pool.readable("b") is None
    assert pool.used == 1
    pool.put(["a", "x", "y", "z"], rows(7, 8, 9, 10))
    pool.drop_all()
    assert pool.readable("a")[1] == before[1]
    assert torch.equal(before[0], rows(1)[0]), "the page's own memory was not given to another one"
    pool.unpin_all()
    assert pool.used == 0
    assert pool.put(["p", "q", "r", "s"], rows(1, 2, 3, 4)) == 4, "every slot is free again"


def test_a_slot_used_again_has_the_new_checksum(pool):
    pool.put(["a", "b", "c", "d"], rows(1, 2, 3, 4))
    first = {key: pool.readable(key)[1] for key in "abcd"}
    pool.put(["x"], rows(9))
    assert pool.readable("x")[1] not in first.values()
