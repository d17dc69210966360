"""Boot epochs count up, whoever starts at the same time."""

from concurrent.futures import ThreadPoolExecutor

from infra.records.boots import latest_boot, next_boot


def test_epochs_count_up_per_component(database):
    assert latest_boot(database, "cell-1") is None
    assert [next_boot(database, "cell-1"), next_boot(database, "cell-1"), next_boot(database, "proxy")] == [1, 2, 1]
    assert latest_boot(database, "cell-1") == 2


def test_starts_at_the_same_time_get_different_epochs(database):
    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: next_boot(database, "cell-0"), range(24)))
    assert sorted(epochs) == list(range(1, 25))
