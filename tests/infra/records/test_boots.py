"""Boot epochs count up, whoever starts at the same time."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import insert

from infra.records.boots import latest_boot, next_boot, open_doors
from infra.records.schema import engines


def test_epochs_count_up_per_component(database):
    assert latest_boot(database, "cell-1") is None
    assert [next_boot(database, "cell-1"), next_boot(database, "cell-1"), next_boot(database, "proxy")] == [1, 2, 1]
    assert latest_boot(database, "cell-1") == 2


def test_starts_at_the_same_time_get_different_epochs(database):
    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: next_boot(database, "cell-0"), range(24)))
    assert sorted(epochs) == list(range(1, 25))


def test_only_doors_of_present_boots_are_open(database):
    for cell in range(3):
        for _ in range(2):
            next_boot(database, f"cell-{cell}")
    row = {"url": "", "slots": 1, "kv_tokens": 1, "version": 0, "updated_at": 1.0}
    rows = [
        row | {"engine": f"cell-{cell}", "cell": cell, "boot_epoch": boot, "door": door}
        for cell, boot, door in ((0, 1, "open"), (1, 2, "open"), (2, 2, "closed"))
    ]
    with database.begin() as connection:
        connection.execute(insert(engines), rows)
    assert open_doors(database) == ["cell-1"]
